#include "tests/emulators/gpu/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "tests/emulators/gpu/control.h"
#include "tests/emulators/gpu/draft.h"
#include "tests/emulators/gpu/instruction_decoder.h"
#include "tests/emulators/gpu/names.h"

namespace lockstep::ptx {
namespace {

constexpr uint32_t kCallsMost = 16;  // within each other: no function calls itself

uint32_t aligned(uint32_t offset, uint32_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// One function's text at one place: the entry's, or that of a function which is called.
struct Frame {
  Frame(Draft& draft, bool of_entry, const std::map<std::string_view, Place>& variables)
      : names(draft), is_entry(of_entry) {
    for (const auto& [name, place] : variables) names.declare(name, place);
  }
  Names names;
  bool is_entry;
  std::map<std::string_view, uint32_t> labels;
  std::vector<std::pair<uint32_t, std::string_view>> branches;  // instruction, label
  std::vector<uint32_t> returns;                                // branches to the end
};

class Decoder {
 public:
  Decoder(const ModuleText& module, Program& program)
      : module_(module), program_(program), instructions_(draft_) {}

  void decode_entry(const Function& entry);
  uint32_t offset() const { return offset_; }  // of the statement at which it is

 private:
  void place_variables(const Function& entry);
  void place_shared(const Variable& variable);
  void declare_variable(Frame& frame, const Variable& variable);
  void decode_body(Frame& frame, const Function& function);
  void decode_instruction(Frame& frame, const Statement& statement);
  void decode_unguarded(Frame& frame, const Statement& statement);
  void decode_branch(Frame& frame, const Statement& statement);
  void decode_call(Frame& frame, const Statement& statement);
  CallValues* find_values(const Names& names, const Word& word) const;

  uint32_t here() const { return static_cast<uint32_t>(draft_.instructions.size()); }
  uint32_t add_end() {
    draft_.ends.push_back(here());
    draft_.add(&end_thread, offset_, {}, {});
    return here() - 1;
  }
  uint32_t add_branch() {
    draft_.ends.push_back(here());
    draft_.add(&branch, offset_, {}, {});
    return here() - 1;
  }
  uint32_t add_branch(const Names& names, std::string_view predicate, bool where_it_holds) {
    const uint32_t reg = instructions_.source(names, {Word::Kind::kName, predicate, 0}, 1);
    draft_.add(where_it_holds ? &branch_if : &branch_unless, offset_, {}, {&reg, 1});
    return here() - 1;
  }
  void set_target(uint32_t instruction, uint32_t to) {
    draft_.instructions[instruction].immediate = to;
    draft_.branches.emplace_back(instruction, to);
  }

  const ModuleText& module_;
  Program& program_;
  Draft draft_;
  InstructionDecoder instructions_;
  // Places of the module's variables, which all functions see, and of the entry's shared ones.
  std::map<std::string_view, Place> places_;
  uint32_t offset_ = 0;
  uint32_t calls_ = 0;  // that it is in
  std::deque<CallValues> call_values_;
};

void Decoder::decode_entry(const Function& entry) {
  place_variables(entry);
  Frame frame(draft_, true, places_);
  uint32_t bytes = 0;
  for (const Variable& parameter : entry.parameters) {
    bytes = aligned(bytes, parameter.alignment);
    program_.parameters.push_back({bytes, parameter.bytes, parameter.alignment});
    frame.names.declare(parameter.name, {"param", bytes});
    bytes += parameter.bytes;
  }
  program_.parameter_bytes = bytes;
  program_.name = entry.name;
  program_.threads_max = entry.threads_max;
  program_.blocks_at_once = entry.blocks_at_once;
  decode_body(frame, entry);
  add_end();
  program_.local_bytes = aligned(program_.local_bytes, 16);  // a thread's follow another's
  draft_.finish(program_);
}

void Decoder::place_variables(const Function& entry) {
  const auto base = reinterpret_cast<uint64_t>(module_.variables->data());
  uint32_t offset = 0;
  for (const Variable& variable : module_.parts.variables) {
    if (variable.space != "global") continue;
    offset = aligned(offset, variable.alignment);
    places_[variable.name] = {"global", base + offset};
    offset += variable.bytes;
  }
  for (const Variable& variable : entry.variables) {
    if (variable.space == "shared") place_shared(variable);
  }
  for (const Variable& variable : module_.parts.variables) {
    if (variable.space == "shared" && !variable.is_extern) place_shared(variable);
  }
  // The memory that the launch asks for begins where the kernel's own ends, whatever its name.
  for (const Variable& variable : module_.parts.variables) {
    if (variable.space == "shared" && variable.is_extern) place_shared(variable);
  }
}

void Decoder::place_shared(const Variable& variable) {
  program_.shared_bytes = aligned(program_.shared_bytes, variable.alignment);
  places_[variable.name] = {"shared", kSharedBase + program_.shared_bytes};
  program_.shared_bytes += variable.bytes;
}

void Decoder::declare_variable(Frame& frame, const Variable& variable) {
  if (variable.space == "shared" && frame.is_entry) return;  // declared before the body
  if (variable.space == "param") {
    call_values_.emplace_back();
    frame.names.declare(variable.name, {"param", 0, &call_values_.back()});
  } else if (variable.space == "local") {
    program_.local_bytes = aligned(program_.local_bytes, variable.alignment);
    frame.names.declare(variable.name, {"local", kLocalBase + program_.local_bytes});
    program_.local_bytes += variable.bytes;
  } else {
    throw WrongStatement("a variable in a space that is unknown here");
  }
}

void Decoder::decode_body(Frame& frame, const Function& function) {
  for (const Statement& statement : function.statements) {
    offset_ = statement.offset;
    switch (statement.kind) {
      case Statement::Kind::kScopeBegin:
        frame.names.begin_scope();
        break;
      case Statement::Kind::kScopeEnd:
        frame.names.end_scope();
        break;
      case Statement::Kind::kRegisters:
        frame.names.declare(function.registers[statement.index]);
        break;
      case Statement::Kind::kVariable:
        declare_variable(frame, function.variables[statement.index]);
        break;
      case Statement::Kind::kLabel:
        frame.labels[statement.name] = here();
        break;
      case Statement::Kind::kInstruction:
        decode_instruction(frame, statement);
        break;
    }
  }
  for (const auto& [instruction, label] : frame.branches) {
    const auto found = frame.labels.find(label);
    offset_ = draft_.instructions[instruction].offset;
    if (found == frame.labels.end()) throw WrongStatement(fmt::format("no label {}", label));
    set_target(instruction, found->second);
  }
  for (const uint32_t instruction : frame.returns) set_target(instruction, here());
}

// A predicate before an instruction is a branch around it.
void Decoder::decode_instruction(Frame& frame, const Statement& statement) {
  if (statement.name == "bra" || statement.name == "bra.uni") {
    return decode_branch(frame, statement);
  }
  if (statement.guard.empty()) return decode_unguarded(frame, statement);
  const uint32_t around = add_branch(frame.names, statement.guard, statement.guard_negated);
  decode_unguarded(frame, statement);
  set_target(around, here());
}

void Decoder::decode_branch(Frame& frame, const Statement& statement) {
  const uint32_t from = statement.guard.empty()
                            ? add_branch()
                            : add_branch(frame.names, statement.guard, !statement.guard_negated);
  frame.branches.emplace_back(from, statement.operands[0].words[0].name);
}

void Decoder::decode_unguarded(Frame& frame, const Statement& statement) {
  const std::string_view name = statement.name;
  if (name == "exit" || (name == "ret" && frame.is_entry)) {
    add_end();
  } else if (name == "ret") {
    frame.returns.push_back(add_branch());
  } else if (name == "call" || name == "call.uni") {
    decode_call(frame, statement);
  } else {
    instructions_.decode(frame.names, statement);
  }
}

CallValues* Decoder::find_values(const Names& names, const Word& word) const {
  const Place* const place = names.find_place(word.name);
  if (place == nullptr || place->values == nullptr) {
    throw WrongStatement(fmt::format("'{}' is no parameter of a call", word.name));
  }
  return place->values;
}

void Decoder::decode_call(Frame& frame, const Statement& statement) {
  const std::string_view name = statement.operands[0].words[0].name;
  const auto& functions = module_.parts.functions;
  const auto function = std::find_if(functions.begin(), functions.end(),
                                     [&](const Function& f) { return f.name == name; });
  if (function == functions.end()) throw WrongStatement(fmt::format("no function {}", name));
  if (calls_ == kCallsMost) throw WrongStatement("functions call each other without end");
  Frame callee(draft_, false, places_);
  const auto bind = [&](const std::vector<Variable>& variables, const Word& word) {
    if (variables.size() != (word.kind == Word::Kind::kNone ? 0 : 1)) {
      throw WrongStatement(fmt::format("{} has other parameters", name));
    }
    if (variables.empty()) return;
    callee.names.declare(variables[0].name, {"param", 0, find_values(frame.names, word)});
  };
  bind(function->results, statement.operands[1].words[0]);
  bind(function->parameters, statement.operands[2].words[0]);
  ++calls_;
  decode_body(callee, *function);
  --calls_;
}

}  // namespace

std::expected<std::unique_ptr<const Program>, std::string> decode(const ModuleText& module,
                                                                  const Function& entry) {
  auto program = std::make_unique<Program>();
  program->text = module.text;
  program->variables = module.variables;
  Decoder decoder(module, *program);
  try {
    decoder.decode_entry(entry);
  } catch (const WrongStatement& wrong) {
    return std::unexpected(
        fmt::format("{}: {}", place_in_text(*module.text, decoder.offset()), wrong.what()));
  }
  return program;
}

}  // namespace lockstep::ptx
