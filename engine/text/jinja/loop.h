// Scopes, the loop variable and macros: what lives while a template's blocks are walked.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/syntax.h"
#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

// The variables of one block. Looking up goes outwards.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}

  const Value* find(Symbol symbol) const;
  void set(Symbol symbol, Value value);

  std::shared_ptr<Scope> parent;
  std::vector<std::pair<Symbol, Value>> variables;
};

// The interface through which loops and macros call the interpreter that walks their bodies.
class Evaluator {
 public:
  virtual Value call_macro(const MacroDefinition& macro, const std::weak_ptr<Scope>& closure,
                           Arguments arguments) = 0;
  virtual Value call_loop(const Statement& loop, const std::shared_ptr<Scope>& outer,
                          const Value& iterable, uint32_t depth) = 0;
  // Whether a loop's filter lets an item through.
  virtual bool passes(const Statement& loop, const std::shared_ptr<Scope>& outer,
                      const Value& item) = 0;

 protected:
  ~Evaluator() = default;
};

// The items of a loop, one by one: its filter is asked only when an item is needed. Lives as long
// as the loop runs.
class LoopSource {
 public:
  LoopSource(Evaluator& evaluator, Heap& heap, const Statement& loop, std::shared_ptr<Scope> outer,
             const Value& iterable);

  std::optional<Value> next();
  const Value* peek();  // nullptr at the end
  // How many items there are in all when `taken` of them were; walks to the end if it must.
  uint64_t length(uint64_t taken);
  const Statement& loop() const { return loop_; }
  // Walks the loop's body over another value, one level deeper.
  Value recurse(const Value& iterable, uint32_t depth) {
    return evaluator_.call_loop(loop_, outer_, iterable, depth);
  }

 private:
  std::optional<Value> pull();

  Evaluator& evaluator_;
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
  Value call(Arguments arguments) override;
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
  Macro(Heap& heap, Evaluator& evaluator, const MacroDefinition& definition,
        const std::shared_ptr<Scope>& closure)
      : Object(heap, {}), evaluator_(evaluator), definition_(definition), closure_(closure) {}

  std::string_view type_name() const override { return "Macro"; }
  std::string shown_as() const override;
  bool callable() const override { return true; }
  Value call(Arguments arguments) override;
  std::optional<Value> attribute(std::string_view name) override;

 private:
  Evaluator& evaluator_;
  const MacroDefinition& definition_;
  // Weak: the scope holds the macro. A macro that outlives its scope sees the outermost one.
  std::weak_ptr<Scope> closure_;
};

}  // namespace lockstep::jinja
