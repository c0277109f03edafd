// Python's operators: truth, comparison, arithmetic, membership, items and slices.
// They fail where Python raises.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

std::string_view type_name(const Value& value);
// How an error speaks of a value: "an int", or, for an undefined one, what is undefined.
std::string describe(const Value& value);
// Fails with the explanation when the value is undefined.
void require_defined(const Value& value);

bool truth(Heap& heap, const Value& value);
bool equal(Heap& heap, const Value& left, const Value& right);
bool less(Heap& heap, const Value& left, const Value& right);
bool contains(Heap& heap, const Value& container, const Value& item);
void check_hashable(Heap& heap, const Value& value);

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};
Value arithmetic(Heap& heap, Operator operation, const Value& left, const Value& right);
bool compare(Heap& heap, Operator operation, const Value& left, const Value& right);
Value negative(const Value& value);
Value positive(const Value& value);

// len(); nullopt for what has none.
std::optional<uint64_t> length(Heap& heap, const Value& value);

// object.name and object[key] as the sandbox does them: what is not there is undefined.
Value get_attribute(Heap& heap, const Value& object, std::string_view name);
Value get_item(Heap& heap, const Value& object, const Value& key);
// As get_attribute, but a dict's keys do not count.
Value get_own_attribute(Heap& heap, const Value& object, std::string_view name);
Value get_slice(Heap& heap, const Value& object, const Value& start, const Value& stop,
                const Value& step);
// The method of a value bound to it; nullopt when its type has none of that name.
std::optional<Value> get_method(Heap& heap, const Value& object, std::string_view name);

}  // namespace lockstep::jinja
