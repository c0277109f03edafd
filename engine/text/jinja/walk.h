// The state that the interpreter enters and leaves as it walks: levels, scopes and captured text.
#pragma once

#include <memory>
#include <utility>

#include "engine/text/jinja/interpreter.h"

namespace lockstep::jinja {

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
