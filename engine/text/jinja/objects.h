// The values with behaviour that filters, methods and functions make.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

// namespace(...): the one value whose attributes a template may set.
class Namespace final : public Object {
 public:
  explicit Namespace(Heap& heap) : Object(heap, {}) {}

  std::string_view type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(std::string_view name) override;
  // Fails for a name that begins with an underscore.
  void set(std::string_view name, Value value);
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;  // of values_
};

// range(...): numbers that are made as they are asked for.
class Range final : public Object {
 public:
  Range(Heap& heap, int64_t start, int64_t stop, int64_t step);

  std::string_view type_name() const override { return "range"; }
  bool truth() const override { return count_ > 0; }
  std::optional<uint64_t> length() override { return count_; }
  Iteration iteration() const override { return Iteration::kIndexed; }
  Value item(uint64_t index) override;
  int64_t start() const { return start_; }
  int64_t stop() const { return stop_; }
  int64_t step() const { return step_; }
  bool contains(int64_t number) const;
  bool equals(const Object& other) const override;

 private:
  int64_t start_;
  int64_t stop_;
  int64_t step_;
  uint64_t count_;
};

// The result of dict.keys(), values() and items().
class DictView final : public Object {
 public:
  enum class Part { kKeys, kValues, kItems };

  DictView(Heap& heap, Value dict, Part part) : Object(heap, {std::move(dict)}), part_(part) {}

  std::string_view type_name() const override;
  bool truth() const override { return !values_[0].dict()->entries.empty(); }
  std::optional<uint64_t> length() override { return values_[0].dict()->entries.size(); }
  Iteration iteration() const override { return Iteration::kIndexed; }
  Value item(uint64_t index) override;
  Part part() const { return part_; }

 private:
  Part part_;
};

// The result of lazy filters: items that can be walked once. They are made at once, but a failure
// of making them is kept until someone walks that far, as if they were made one by one.
class Generator final : public Object {
 public:
  using Fill = std::function<void(std::vector<Value>& items)>;
  Generator(Heap& heap, const Fill& fill);

  static Value make(Heap& heap, const Fill& fill) {
    return Value(std::shared_ptr<Object>(std::make_shared<Generator>(heap, fill)));
  }

  std::string_view type_name() const override { return "generator"; }
  Iteration iteration() const override { return Iteration::kOnce; }
  std::optional<Value> next() override;

 private:
  size_t position_ = 0;
  std::optional<Failure> failure_;
};

// A row of a table as a value: a function, or a method with the value it belongs to.
class Callable final : public Object {
 public:
  Callable(Heap& heap, const Native& native, Value self)
      : Object(heap, {std::move(self)}), native_(native) {}

  static Value make(Heap& heap, const Native& native, Value self = {}) {
    return Value(
        std::shared_ptr<Object>(std::make_shared<Callable>(heap, native, std::move(self))));
  }

  std::string_view type_name() const override { return "builtin_function_or_method"; }
  bool callable() const override { return true; }
  Value call(Arguments arguments) override;
  std::optional<Value> attribute(std::string_view name) override;

 private:
  const Native& native_;
};

// cycler(...)
class Cycler final : public Object {
 public:
  Cycler(Heap& heap, std::vector<Value> items) : Object(heap, std::move(items)) {}

  std::string_view type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(std::string_view name) override;
  Value advance();
  void reset() { position_ = 0; }

 private:
  size_t position_ = 0;
};

// joiner(...)
class Joiner final : public Object {
 public:
  Joiner(Heap& heap, Value separator) : Object(heap, {std::move(separator)}) {}

  std::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Arguments arguments) override;
  std::optional<Value> attribute(std::string_view name) override;

 private:
  bool used_ = false;
};

// A function that knows something of its rendering, such as the clock.
class Function final : public Object {
 public:
  using Body = std::function<Value(Heap& heap, Arguments arguments)>;
  Function(Heap& heap, Body body) : Object(heap, {}), body_(std::move(body)) {}

  std::string_view type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Arguments arguments) override;

 private:
  Body body_;
};

}  // namespace lockstep::jinja
