#include "engine/text/jinja/objects.h"

#include <algorithm>

namespace lockstep::jinja {

namespace {

// The sandbox makes no longer ranges.
constexpr uint64_t kRangeMost = 100'000;

uint64_t range_count(int64_t start, int64_t stop, int64_t step) {
  if (step == 0) fail("range() arg 3 must not be zero");
  if (step > 0 ? start >= stop : start <= stop) return 0;
  // The distance of two int64 fits an uint64 whatever their signs.
  const uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                     : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  return (distance - 1) / stride + 1;
}

Value cycler_next(Heap&, BoundArguments& arguments) {
  return arguments.self().object_as<Cycler>()->advance();
}

Value cycler_reset(Heap&, BoundArguments& arguments) {
  arguments.self().object_as<Cycler>()->reset();
  return {};
}

constexpr Native kCyclerNext = {"next", cycler_next};
constexpr Native kCyclerReset = {"reset", cycler_reset};

}  // namespace

std::optional<Value> Namespace::attribute(std::string_view name) {
  const auto found = std::ranges::find(names_, name);
  if (found == names_.end()) return std::nullopt;
  return values_[static_cast<size_t>(found - names_.begin())];
}

void Namespace::set(std::string_view name, Value value) {
  if (name.starts_with('_')) {
    fail("a namespace cannot store the underscore-prefixed attribute '{}': rename it", name);
  }
  heap_.step(1 + names_.size() / 16);
  const auto found = std::ranges::find(names_, name);
  if (found != names_.end()) {
    Value& slot = values_[static_cast<size_t>(found - names_.begin())];
    // The old value may die, and with it objects: not before the slot holds the new one.
    std::vector<Value> old;
    old.push_back(std::exchange(slot, std::move(value)));
    heap_.bury(std::move(old));
    return;
  }
  names_.emplace_back(name);
  values_.push_back(std::move(value));
}

Range::Range(Heap& heap, int64_t start, int64_t stop, int64_t step)
    : Object(heap, {}),
      start_(start),
      stop_(stop),
      step_(step),
      count_(range_count(start, stop, step)) {
  if (count_ > kRangeMost) {
    fail("range too big: the sandbox allows {} numbers, {} were asked for", kRangeMost, count_);
  }
}

Value Range::item(uint64_t index) {
  return Value(
      static_cast<int64_t>(static_cast<uint64_t>(start_) + index * static_cast<uint64_t>(step_)));
}

bool Range::contains(int64_t number) const {
  if (step_ > 0 ? (number < start_ || number >= stop_) : (number > start_ || number <= stop_)) {
    return false;
  }
  return range_count(start_, number, step_) * static_cast<uint64_t>(step_) +
             static_cast<uint64_t>(start_) ==
         static_cast<uint64_t>(number);
}

bool Range::equals(const Object& other) const {
  if (this == &other) return true;
  const auto* second = dynamic_cast<const Range*>(&other);
  if (second == nullptr || count_ != second->count_) return false;
  if (count_ == 0) return true;
  heap_.step();
  return start_ == second->start_ && (count_ == 1 || step_ == second->step_);
}

std::string_view DictView::type_name() const {
  switch (part_) {
    case Part::kKeys:
      return "dict_keys";
    case Part::kValues:
      return "dict_values";
    case Part::kItems:
      return "dict_items";
  }
  return "dict_items";
}

Value DictView::item(uint64_t index) {
  const auto& [key, value] = values_[0].dict()->entries[index];
  if (part_ == Part::kKeys) return key;
  if (part_ == Part::kValues) return value;
  return make_tuple(heap_, {key, value});
}

Generator::Generator(Heap& heap, const Fill& fill) : Object(heap, {}) {
  try {
    fill(values_);
  } catch (Failure& failure) {
    if (failure.budget) throw;
    failure_ = std::move(failure);
  }
}

std::optional<Value> Generator::next() {
  if (position_ < values_.size()) return values_[position_++];
  if (failure_) throw Failure(*failure_);
  return std::nullopt;
}

Value Callable::call(Arguments arguments) {
  return call_native(heap_, native_, values_[0], std::move(arguments));
}

std::optional<Value> Callable::attribute(std::string_view name) {
  // dict itself is called and has this one function.
  if (native_.name == "dict" && name == "fromkeys") {
    return Callable::make(heap_, *find_function("dict.fromkeys"));
  }
  return std::nullopt;
}

Value Cycler::advance() {
  const Value value = values_[position_];
  position_ = (position_ + 1) % values_.size();
  return value;
}

std::optional<Value> Cycler::attribute(std::string_view name) {
  if (name == "current") return values_[position_];
  // Bound to this very object: its owner holds it while the attribute is used.
  if (name == "next" || name == "reset") {
    return Callable::make(heap_, name == "next" ? kCyclerNext : kCyclerReset,
                          Value(shared_from_this()));
  }
  return std::nullopt;
}

Value Joiner::call(Arguments) {
  if (used_) return values_[0];
  used_ = true;
  return make_own_string(heap_, "");
}

std::optional<Value> Joiner::attribute(std::string_view name) {
  if (name == "sep") return values_[0];
  if (name == "used") return Value(used_);
  return std::nullopt;
}

Value Function::call(Arguments arguments) {
  return body_(heap_, std::move(arguments));
}

}  // namespace lockstep::jinja
