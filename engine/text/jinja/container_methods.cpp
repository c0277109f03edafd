// The methods of dicts, lists, tuples and numbers that change nothing.
#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/operations.h"

namespace lockstep::jinja {

namespace {

template <DictView::Part part>
Value view(Heap& heap, BoundArguments& arguments) {
  return Value(std::shared_ptr<Object>(std::make_shared<DictView>(heap, arguments.self(), part)));
}

Value get(Heap& heap, BoundArguments& arguments) {
  const Value* found = arguments.self().dict()->find(heap, arguments.value(0));
  return found != nullptr ? *found : arguments.value(1);
}

Value copy(Heap&, BoundArguments& arguments) {
  return arguments.self();
}

Value index(Heap& heap, BoundArguments& arguments) {
  const auto& items = arguments.self().sequence()->items;
  const auto count = static_cast<int64_t>(items.size());
  const auto bound = [&](size_t at, int64_t otherwise) {
    const int64_t given = arguments.integer(at, otherwise);
    return std::clamp(given < 0 && given >= -count ? given + count : given, int64_t{0}, count);
  };
  const int64_t end = bound(2, count);
  for (int64_t at = bound(1, 0); at < end; ++at) {
    if (equal(heap, items[static_cast<size_t>(at)], arguments.value(0))) return Value(at);
  }
  fail("{} is not in the list", describe(arguments.value(0)));
}

Value count(Heap& heap, BoundArguments& arguments) {
  const auto& items = arguments.self().sequence()->items;
  return Value(static_cast<int64_t>(std::ranges::count_if(
      items, [&](const Value& item) { return equal(heap, item, arguments.value(0)); })));
}

Value bit_length(Heap&, BoundArguments& arguments) {
  const int64_t number = arguments.self().integral();
  const uint64_t magnitude =
      number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  return Value(static_cast<int64_t>(std::bit_width(magnitude)));
}

Value is_whole(Heap&, BoundArguments& arguments) {
  const double number = arguments.self().floating();
  return Value(std::isfinite(number) && std::floor(number) == number);
}

constexpr Native kDictMethods[] = {
    {"copy", copy},
    {"get", get, 1, {"key", "default"}},
    {"items", view<DictView::Part::kItems>},
    {"keys", view<DictView::Part::kKeys>},
    {"values", view<DictView::Part::kValues>},
};

constexpr Native kListMethods[] = {
    {"copy", copy},
    {"count", count, 1, {"value"}},
    {"index", index, 1, {"value", "start", "stop"}},
};

constexpr Native kTupleMethods[] = {
    {"count", count, 1, {"value"}},
    {"index", index, 1, {"value", "start", "stop"}},
};

constexpr Native kIntegerMethods[] = {{"bit_length", bit_length}, {"conjugate", copy}};
constexpr Native kFloatMethods[] = {{"conjugate", copy}, {"is_integer", is_whole}};

const Native* find_in(std::span<const Native> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Native::name);
  return found == table.end() ? nullptr : &*found;
}

}  // namespace

const Native* find_method(const Value& self, std::string_view name) {
  if (self.is_string()) {
    const Native* method = find_in(string_methods(), name);
    return method != nullptr ? method : find_in(string_searches(), name);
  }
  if (self.dict() != nullptr) return find_in(kDictMethods, name);
  if (self.is_list()) return find_in(kListMethods, name);
  if (self.is_tuple()) return find_in(kTupleMethods, name);
  if (self.is_integral()) return find_in(kIntegerMethods, name);
  if (self.is_float()) return find_in(kFloatMethods, name);
  return nullptr;
}

}  // namespace lockstep::jinja
