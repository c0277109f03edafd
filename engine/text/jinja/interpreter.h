// Walks a parsed template and writes its text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/loop.h"
#include "engine/text/jinja/syntax.h"
#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

class Interpreter final : public Evaluator {
 public:
  // All of them outlive the interpreter. `globals` are the outermost variables.
  Interpreter(const Template& program, Heap& heap, std::shared_ptr<Scope> globals,
              TextBuilder& output);

  void run();
  // The line of the rendering, for the message of a failure.
  uint32_t line() const { return line_; }

 private:
  enum class Flow { kOn, kBreak, kContinue };
  class Level;
  class CallLevel;
  class ScopeGuard;
  class Capture;

  Value call_macro(const MacroDefinition& macro, const std::weak_ptr<Scope>& closure,
                   Arguments arguments) override;
  Value call_loop(const Statement& loop, const std::shared_ptr<Scope>& outer, const Value& iterable,
                  uint32_t depth) override;
  bool passes(const Statement& loop, const std::shared_ptr<Scope>& outer,
              const Value& item) override;

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

// The states that the interpreter enters and leaves as it walks: levels, scopes, captured text.

[[noreturn]] void fail_depth(const char* what, uint32_t limit);

// One evaluation within another. Blocks and expressions nest up to the depth budget each, and
// calls multiply that: the product is bounded too, for the sake of the stack.
class Interpreter::Level {
 public:
  static constexpr uint32_t kPerDepth = 12;

  explicit Level(Interpreter& interpreter) : interpreter_(interpreter) {
    interpreter_.heap_.step();
    const uint32_t limit = kPerDepth * interpreter_.heap_.limits().depth;
    if (interpreter_.levels_ >= limit) fail_depth("evaluation", limit);
    ++interpreter_.levels_;
  }
  ~Level() { --interpreter_.levels_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Interpreter& interpreter_;
};

// A macro or a recursive loop within another.
class Interpreter::CallLevel {
 public:
  explicit CallLevel(Interpreter& interpreter) : interpreter_(interpreter) {
    const uint32_t limit = interpreter_.heap_.limits().depth;
    if (interpreter_.calls_ >= limit) fail_depth("calls of macros and loops", limit);
    ++interpreter_.calls_;
  }
  ~CallLevel() { --interpreter_.calls_; }
  CallLevel(const CallLevel&) = delete;
  CallLevel& operator=(const CallLevel&) = delete;

 private:
  Interpreter& interpreter_;
};

class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter& interpreter, std::shared_ptr<Scope> scope)
      : interpreter_(interpreter), before_(std::exchange(interpreter.scope_, std::move(scope))) {}
  ~ScopeGuard() { interpreter_.scope_ = std::move(before_); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Interpreter& interpreter_;
  std::shared_ptr<Scope> before_;
};

// Takes what is written until finish() or the end of its life.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& interpreter)
      : interpreter_(interpreter),
        text_(interpreter.heap_),
        before_(std::exchange(interpreter.output_, &text_)) {}
  ~Capture() { interpreter_.output_ = before_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  Value finish() { return make_string(interpreter_.heap_, text_.finish()); }

 private:
  Interpreter& interpreter_;
  TextBuilder text_;
  TextBuilder* before_;
};

}  // namespace lockstep::jinja
