// The loop variable and macros: the objects that call back into the interpreter.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string_view>

#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/iterate.h"
#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

// The items of a loop, one by one: its filter is asked only when an item is needed. Lives as long
// as the loop runs.
class LoopSource {
 public:
  LoopSource(Interpreter& interpreter, Heap& heap, const Statement& loop,
             std::shared_ptr<Scope> outer, const Value& iterable);

  std::optional<Value> next();
  const Value* peek();  // nullptr at the end
  // How many items there are in all when `taken` of them were; walks to the end if it must.
  uint64_t length(uint64_t taken);
  const Statement& loop() const { return loop_; }
  const std::shared_ptr<Scope>& outer() const { return outer_; }

 private:
  std::optional<Value> pull();

  Interpreter& interpreter_;
  Heap& heap_;
  const Statement& loop_;
  std::shared_ptr<Scope> outer_;
  Value iterable_;
  Iterator iterator_;
  std::deque<Value> ahead_;
  std::optional<uint64_t> length_;
};

// The variable `loop`.
class Loop final : public Object {
 public:
  Loop(Heap& heap, LoopSource& source, uint32_t depth);

  // The next item; nullopt when the loop is over.
  std::optional<Value> advance();
  // The loop is over: its source is gone.
  void finish() { source_ = nullptr; }
  Value cycle(const std::vector<Value>& values) const;
  bool changed(std::vector<Value> values);

  std::string_view type_name() const override { return "LoopContext"; }
  bool truth() const override { return true; }
  std::optional<uint64_t> length() override;
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments arguments) override;
  std::optional<Value> attribute(std::string_view name) override;

 private:
  enum Slot { kCurrent, kBefore, kChanged };  // of values_

  LoopSource* source_;
  uint32_t depth_;
  int64_t index_ = -1;
  bool has_before_ = false;
  bool has_changed_ = false;
  uint64_t final_length_ = 0;
};

class Macro final : public Object {
 public:
  Macro(Heap& heap, const MacroDefinition& definition, const std::shared_ptr<Scope>& closure)
      : Object(heap, {}), definition_(definition), closure_(closure) {}

  std::string_view type_name() const override { return "Macro"; }
  std::string shown_as() const override;
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments arguments) override;
  std::optional<Value> attribute(std::string_view name) override;

 private:
  const MacroDefinition& definition_;
  // Weak: the scope holds the macro. A macro that outlives its scope sees the outermost one.
  std::weak_ptr<Scope> closure_;
};

}  // namespace lockstep::jinja
