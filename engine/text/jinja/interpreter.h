// Walks a parsed template and writes its text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/heap.h"
#include "engine/text/jinja/syntax.h"
#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

class LoopSource;

// The variables of one block. Looking up goes outwards.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}

  const Value* find(Symbol symbol) const;
  void set(Symbol symbol, Value value);

  std::shared_ptr<Scope> parent;
  std::vector<std::pair<Symbol, Value>> variables;
};

class Interpreter {
 public:
  // All of them outlive the interpreter. `globals` are the outermost variables.
  Interpreter(const Template& program, Heap& heap, std::shared_ptr<Scope> globals,
              TextBuilder& output);

  void run();
  // The line of the rendering, for the message of a failure.
  uint32_t line() const { return line_; }

  // For objects that are called.
  Value call_macro(const MacroDefinition& macro, const std::weak_ptr<Scope>& closure,
                   Arguments arguments);
  Value call_loop(const Statement& loop, const std::shared_ptr<Scope>& outer, const Value& iterable,
                  uint32_t depth);
  // Whether a loop's filter lets an item through.
  bool passes(const Statement& loop, const std::shared_ptr<Scope>& outer, const Value& item);

 private:
  enum class Flow { kOn, kBreak, kContinue };
  class Level;
  class CallLevel;
  class ScopeGuard;
  class Capture;

  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  Flow execute_if(const Statement& statement);
  void execute_for(const Statement& statement);
  void run_loop(const Statement& loop, const std::shared_ptr<Scope>& outer, const Value& iterable,
                uint32_t depth);
  Flow execute_set_block(const Statement& statement);
  Flow execute_filter_block(const Statement& statement);
  void execute_call(const Statement& statement);
  Flow execute_with(const Statement& statement);
  Flow execute_scope(const Statement& statement);
  void print(const Value& value);
  void assign(const Target& target, const Value& value);

  Value evaluate(const Expression& expression);
  Value evaluate_kind(const Expression& expression);
  Value evaluate_name(const Expression& expression);
  Value evaluate_items(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_call(const Expression& expression, std::optional<Value> caller);
  Value evaluate_filter(const Expression& expression, const Value* input);
  Value evaluate_test(const Expression& expression);
  Value evaluate_arithmetic(const Expression& expression);
  Value evaluate_concatenation(const Expression& expression);
  Value evaluate_comparison(const Expression& expression);
  Value evaluate_choice(const Expression& expression);
  Arguments evaluate_arguments(const CallArguments& arguments);
  void spread_arguments(const CallArguments& arguments, Arguments& result);
  Value call(const Value& callee, Arguments arguments);
  Arguments bind_special(const MacroDefinition& macro, Scope& scope, Arguments arguments);

  const Template& program_;
  Heap& heap_;
  std::shared_ptr<Scope> globals_;
  std::shared_ptr<Scope> root_;  // what the template itself sets outermost
  std::shared_ptr<Scope> scope_;
  TextBuilder* output_;
  uint32_t line_ = 0;
  uint32_t levels_ = 0;  // of evaluation, one within the other
  uint32_t calls_ = 0;   // of macros and recursive loops
};

}  // namespace lockstep::jinja
