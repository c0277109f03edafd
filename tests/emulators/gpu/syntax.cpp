#include "tests/emulators/gpu/syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <utility>

#include "tests/emulators/gpu/lexer.h"

namespace lockstep::ptx {
namespace {

// Thrown and caught in this file: the grammar is read by functions within functions.
struct Wrong : std::runtime_error {
  Wrong(size_t at, const std::string& what) : std::runtime_error(what), offset(at) {}
  size_t offset;
};

bool begins_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text), lexer_(text) {}
  Text read();

 private:
  [[noreturn]] void fail(std::string_view wanted) const {
    throw Wrong(lexer_.now().offset,
                fmt::format("{} was expected, not '{}'", wanted, lexer_.now().text));
  }
  std::string_view name();
  uint32_t number();
  void mark(char c) {
    if (!lexer_.take(c)) fail(fmt::format("'{}'", c));
  }
  bool directive(std::string_view name);
  void skip_braces();

  Variable variable(std::string_view space);
  std::vector<Variable> parameters();
  void function(bool is_entry);
  void body(Function& function);
  void registers(Function& function);
  Statement instruction();
  void call(Statement& statement);
  Word word();
  Operand operand();

  std::string_view text_;
  Lexer lexer_;
  Text result_;
};

std::string_view Reader::name() {
  if (lexer_.now().kind != Token::Kind::kName) fail("a name");
  return lexer_.take().text;
}

uint32_t Reader::number() {
  if (lexer_.now().kind != Token::Kind::kInteger) fail("a number");
  return static_cast<uint32_t>(lexer_.take().bits);
}

bool Reader::directive(std::string_view name) {
  if (lexer_.now().text != name) return false;
  lexer_.take();
  return true;
}

void Reader::skip_braces() {
  mark('{');
  while (!lexer_.take('}')) {
    if (lexer_.now().kind == Token::Kind::kEnd) fail("'}'");
    lexer_.take();
  }
}

// Reads a variable's declaration from behind its state space on.
Variable Reader::variable(std::string_view space) {
  Variable result{.space = space};
  if (directive(".align")) result.alignment = number();
  const size_t offset = lexer_.now().offset;
  const std::string_view type = name();
  const uint32_t element_bytes = type_bytes(type.substr(1));
  if (element_bytes == 0) throw Wrong(offset, fmt::format("{} is no type", type));
  result.alignment = std::max(result.alignment, element_bytes);
  result.name = name();
  result.bytes = element_bytes;
  if (lexer_.take('[')) {
    result.bytes = lexer_.now().is(']') ? 0 : element_bytes * number();
    mark(']');
  }
  if (lexer_.take('=')) {
    if (element_bytes != 1) fail("a variable of bytes");
    mark('{');
    do {
      result.values.push_back(static_cast<uint8_t>(number()));
    } while (lexer_.take(','));
    mark('}');
  }
  return result;
}

std::vector<Variable> Reader::parameters() {
  std::vector<Variable> result;
  if (!lexer_.take('(')) return result;
  while (!lexer_.take(')')) {
    if (!directive(".param")) fail(".param");
    result.push_back(variable("param"));
    lexer_.take(',');
  }
  return result;
}

void Reader::function(bool is_entry) {
  Function result{.is_entry = is_entry};
  if (!is_entry) result.results = parameters();
  result.name = name();
  result.parameters = parameters();
  for (;;) {
    if (directive(".maxntid")) {
      result.threads_max = number();
      while (lexer_.take(',')) result.threads_max *= number();
    } else if (directive(".minnctapersm")) {
      result.blocks_at_once = number();
    } else if (!directive(".noreturn")) {
      break;
    }
  }
  if (lexer_.take(';')) return;  // declared only
  body(result);
  result_.functions.push_back(std::move(result));
}

void Reader::registers(Function& function) {
  const size_t offset = lexer_.now().offset;
  const std::string_view type = name();
  const uint32_t bytes = type_bytes(type.substr(1));
  if (bytes == 0) throw Wrong(offset, fmt::format("{} is no type", type));
  do {
    Registers group{.name = name(), .lane_bytes = bytes};
    if (lexer_.take('<')) {
      group.count = number();
      mark('>');
    }
    function.statements.push_back({.kind = Statement::Kind::kRegisters,
                                   .offset = static_cast<uint32_t>(offset),
                                   .index = static_cast<uint32_t>(function.registers.size())});
    function.registers.push_back(group);
  } while (lexer_.take(','));
  mark(';');
}

void Reader::body(Function& function) {
  mark('{');
  for (int depth = 1; depth > 0;) {
    const Token& now = lexer_.now();
    Statement statement{.offset = now.offset, .name = now.text};
    if (lexer_.take('{')) {
      ++depth;
      statement.kind = Statement::Kind::kScopeBegin;
    } else if (lexer_.take('}')) {
      if (--depth == 0) break;
      statement.kind = Statement::Kind::kScopeEnd;
    } else if (directive(".reg")) {
      registers(function);
      continue;
    } else if (directive(".pragma")) {
      lexer_.take();
      mark(';');
      continue;
    } else if (begins_with(now.text, ".")) {
      const std::string_view space = lexer_.take().text.substr(1);
      statement.kind = Statement::Kind::kVariable;
      statement.index = static_cast<uint32_t>(function.variables.size());
      function.variables.push_back(variable(space));
      mark(';');
    } else {
      statement = instruction();
    }
    function.statements.push_back(statement);
  }
}

Word Reader::word() {
  const Token token = lexer_.take();
  switch (token.kind) {
    case Token::Kind::kName:
      return {Word::Kind::kName, token.text, 0};
    case Token::Kind::kInteger:
      return {Word::Kind::kInteger, token.text, token.bits};
    case Token::Kind::kFloat32:
      return {Word::Kind::kFloat32, token.text, token.bits};
    case Token::Kind::kFloat64:
      return {Word::Kind::kFloat64, token.text, token.bits};
    default:
      throw Wrong(token.offset, fmt::format("'{}' is no operand", token.text));
  }
}

Operand Reader::operand() {
  Operand result;
  if (lexer_.take('{')) {
    result.kind = Operand::Kind::kVector;
    result.count = 0;
    do {
      if (result.count == kElementsMost) fail("'}'");
      const Word element = word();
      if (result.count < kElementsUsual) {
        result.words[result.count] = element;
      } else {
        result.others.push_back(element);
      }
      ++result.count;
    } while (lexer_.take(','));
    mark('}');
  } else if (lexer_.take('[')) {
    result.kind = Operand::Kind::kAddress;
    result.words[0] = word();
    // "+-8" is an offset too; "+8" is a mark and a number.
    if (lexer_.take('+')) result.offset = static_cast<int64_t>(word().bits);
    mark(']');
  } else {
    result.words[0] = word();
    if (lexer_.take('|')) {
      result.kind = Operand::Kind::kPair;
      result.count = 2;
      result.words[1] = word();
    }
  }
  return result;
}

// call.uni (results), function, (parameters): operand 0 is the function, 1 its result, 2 its
// parameter.
void Reader::call(Statement& statement) {
  const auto group = [&](Operand& into) {
    if (!lexer_.take('(')) return;
    into.words[0] = word();
    mark(')');
  };
  group(statement.operands[1]);
  lexer_.take(',');
  statement.operands[0].words[0] = word();
  lexer_.take(',');
  group(statement.operands[2]);
  statement.operand_count = 3;
}

Statement Reader::instruction() {
  Statement result{.offset = lexer_.now().offset};
  if (lexer_.take('@')) {
    result.guard_negated = lexer_.take('!');
    result.guard = name();
  }
  result.name = name();
  if (result.guard.empty() && lexer_.take(':')) {
    result.kind = Statement::Kind::kLabel;
    return result;
  }
  if (begins_with(result.name, "call")) {
    call(result);
  } else {
    while (!lexer_.now().is(';')) {
      if (result.operand_count == kOperandsMost) fail("';'");
      result.operands[result.operand_count++] = operand();
      if (!lexer_.take(',')) break;
    }
  }
  mark(';');
  return result;
}

Text Reader::read() {
  while (lexer_.now().kind != Token::Kind::kEnd) {
    if (directive(".version")) {
      result_.isa_version = name();
    } else if (directive(".target")) {
      result_.target = name();
      while (lexer_.take(',')) name();
    } else if (directive(".address_size")) {
      if (number() != 64) fail("64");
    } else if (directive(".section")) {
      name();
      skip_braces();
    } else if (directive(".entry")) {
      function(true);
    } else if (directive(".func")) {
      function(false);
    } else if (!directive(".visible") && !directive(".weak")) {
      const bool is_extern = directive(".extern");
      const std::string_view space = lexer_.now().text;
      if (space != ".global" && space != ".shared" && space != ".const") fail("a directive");
      lexer_.take();
      result_.variables.push_back(variable(space.substr(1)));
      result_.variables.back().is_extern = is_extern;
      mark(';');
    }
  }
  return std::move(result_);
}

// The whole number at the beginning, which is removed with the blanks behind it.
uint32_t take_number(std::string_view& text) {
  uint32_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return number;
}

// " (rows.inl.h:12)" for what lies there; empty where the compiler has not said it.
std::string source_of(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  constexpr std::string_view kPlace = ".loc\t";
  constexpr std::string_view kFile = ".file\t";
  const size_t found = before.rfind(kPlace);
  const size_t function_before = before.rfind("\n}");
  if (found == std::string_view::npos ||
      (function_before != std::string_view::npos && found < function_before)) {
    return {};
  }
  std::string_view place = before.substr(found + kPlace.size());
  const uint32_t file = take_number(place);
  const uint32_t line = take_number(place);
  for (size_t at = 0; (at = text.find(kFile, at)) != std::string_view::npos;) {
    at += kFile.size();
    std::string_view entry = text.substr(at, text.find('\n', at) - at);
    if (take_number(entry) != file) continue;
    entry = entry.substr(entry.rfind('/') + 1);
    return fmt::format(" ({}:{})", entry.substr(0, entry.find('"')), line);
  }
  return {};
}

}  // namespace

std::expected<Text, std::string> read_text(std::string_view text) {
  try {
    return Reader(text).read();
  } catch (const Wrong& wrong) {
    return std::unexpected(fmt::format("{}: {}", place_in_text(text, wrong.offset), wrong.what()));
  }
}

std::string place_in_text(std::string_view text, size_t offset) {
  const size_t end = std::min(text.find('\n', offset), text.find(';', offset));
  const auto begin = text.begin() + static_cast<ptrdiff_t>(offset);
  return fmt::format("line {}: `{}`{}", 1 + std::count(text.begin(), begin, '\n'),
                     text.substr(offset, end - offset), source_of(text, offset));
}

uint32_t type_bytes(std::string_view type) {
  if (type == "pred") return 1;
  if (type.size() < 2 || std::string_view("busf").find(type[0]) == std::string_view::npos) return 0;
  const std::string_view bits = type.substr(1);
  if (bits == "8" && type[0] != 'f') return 1;
  if (bits == "16") return 2;
  if (bits == "32") return 4;
  return bits == "64" ? 8 : 0;
}

}  // namespace lockstep::ptx
