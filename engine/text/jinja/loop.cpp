#include "engine/text/jinja/loop.h"

#include <algorithm>

#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/operations.h"

namespace lockstep::jinja {

namespace {

Value loop_cycle(Heap&, BoundArguments& arguments) {
  return arguments.self().object_as<Loop>()->cycle(arguments.all().positional);
}

Value loop_changed(Heap&, BoundArguments& arguments) {
  return Value(arguments.self().object_as<Loop>()->changed(std::move(arguments.all().positional)));
}

constexpr Native kCycleMethod = {"cycle", loop_cycle, Native::kAnyNumber};
constexpr Native kChangedMethod = {"changed", loop_changed, Native::kAnyNumber};

}  // namespace

const Value* Scope::find(Symbol symbol) const {
  const auto found = std::ranges::find(variables, symbol, &std::pair<Symbol, Value>::first);
  return found == variables.end() ? nullptr : &found->second;
}

void Scope::set(Symbol symbol, Value value) {
  const auto found = std::ranges::find(variables, symbol, &std::pair<Symbol, Value>::first);
  if (found != variables.end()) {
    // The old value dies after the new one is in place.
    const Value old = std::exchange(found->second, std::move(value));
  } else {
    variables.emplace_back(symbol, std::move(value));
  }
}

LoopSource::LoopSource(Evaluator& evaluator, Heap& heap, const Statement& loop,
                       std::shared_ptr<Scope> outer, const Value& iterable)
    : evaluator_(evaluator),
      heap_(heap),
      loop_(loop),
      outer_(std::move(outer)),
      iterable_(iterable),
      iterator_(heap, iterable) {}

std::optional<Value> LoopSource::pull() {
  while (auto item = iterator_.next()) {
    if (loop_.expressions[1] == nullptr || evaluator_.passes(loop_, outer_, *item)) return item;
  }
  return std::nullopt;
}

std::optional<Value> LoopSource::next() {
  if (ahead_.empty()) return pull();
  Value item = std::move(ahead_.front());
  ahead_.pop_front();
  return item;
}

const Value* LoopSource::peek() {
  if (ahead_.empty()) {
    auto item = pull();
    if (!item) return nullptr;
    ahead_.push_back(std::move(*item));
  }
  return &ahead_.front();
}

uint64_t LoopSource::length(uint64_t taken) {
  if (length_) return *length_;
  if (loop_.expressions[1] == nullptr) length_ = jinja::length(heap_, iterable_);
  if (!length_) {
    while (auto item = pull()) ahead_.push_back(std::move(*item));
    length_ = taken + ahead_.size();
  }
  return *length_;
}

Loop::Loop(Heap& heap, LoopSource& source, uint32_t depth)
    : Object(heap, std::vector<Value>(3)), source_(&source), depth_(depth) {}

std::optional<Value> Loop::advance() {
  auto item = source_->next();
  if (!item) return item;
  has_before_ = index_ >= 0;
  ++index_;
  values_[kBefore] = std::exchange(values_[kCurrent], *item);
  return item;
}

Value Loop::cycle(const std::vector<Value>& values) const {
  if (values.empty()) fail("no items for cycling given");
  return values[static_cast<size_t>(index_) % values.size()];
}

bool Loop::changed(std::vector<Value> values) {
  const Value now = make_tuple(heap_, std::move(values));
  if (has_changed_ && equal(heap_, values_[kChanged], now)) return false;
  has_changed_ = true;
  std::vector<Value> old;
  old.push_back(std::exchange(values_[kChanged], now));
  heap_.bury(std::move(old));
  return true;
}

std::optional<uint64_t> Loop::length() {
  if (source_ != nullptr) final_length_ = source_->length(static_cast<uint64_t>(index_ + 1));
  return final_length_;
}

Value Loop::call(Arguments arguments) {
  if (source_ == nullptr || !source_->loop().recursive) {
    fail("the loop must have the 'recursive' marker to be called recursively");
  }
  if (arguments.positional.size() != 1 || !arguments.named.empty()) {
    fail("loop() takes what is to be walked, and nothing else");
  }
  return source_->recurse(arguments.positional[0], depth_ + 1);
}

std::optional<Value> Loop::attribute(std::string_view name) {
  if (name == "index") return Value(index_ + 1);
  if (name == "index0") return Value(index_);
  if (name == "first") return Value(index_ == 0);
  if (name == "last") return Value(source_ == nullptr || source_->peek() == nullptr);
  if (name == "length") return Value::integer(*length());
  if (name == "revindex") return Value(static_cast<int64_t>(*length()) - index_);
  if (name == "revindex0") return Value(static_cast<int64_t>(*length()) - index_ - 1);
  if (name == "depth") return Value(int64_t{depth_} + 1);
  if (name == "depth0") return Value(int64_t{depth_});
  if (name == "previtem") {
    return has_before_ ? values_[kBefore] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    const Value* next = source_ == nullptr ? nullptr : source_->peek();
    return next != nullptr ? *next : Value::undefined("there is no next item");
  }
  if (name == "cycle") return Callable::make(heap_, kCycleMethod, Value(shared_from_this()));
  if (name == "changed") {
    return Callable::make(heap_, kChangedMethod, Value(shared_from_this()));
  }
  return std::nullopt;
}

std::string Macro::shown_as() const {
  return definition_.name.empty() ? "Macro anonymous" : fmt::format("Macro '{}'", definition_.name);
}

Value Macro::call(Arguments arguments) {
  return evaluator_.call_macro(definition_, closure_, std::move(arguments));
}

std::optional<Value> Macro::attribute(std::string_view name) {
  if (name == "name") {
    if (definition_.name.empty()) return Value();
    return make_own_string(heap_, definition_.name);
  }
  if (name == "catch_kwargs") return Value(definition_.uses_kwargs);
  if (name == "catch_varargs") return Value(definition_.uses_varargs);
  if (name == "caller") return Value(definition_.uses_caller);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const auto& parameter : definition_.parameters) {
    names.push_back(make_own_string(heap_, parameter.name));
  }
  return make_tuple(heap_, std::move(names));
}

}  // namespace lockstep::jinja
