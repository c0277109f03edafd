// Python's operators: comparison, arithmetic, membership, items and slices; and walking.
// They fail where Python raises.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

bool less(Heap& heap, const Value& left, const Value& right);
bool contains(Heap& heap, const Value& container, const Value& item);
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

bool is_iterable(const Value& value);

// The items of a value, made as they are asked for. Each costs a step.
class Iterator {
 public:
  // Fails for what cannot be walked.
  Iterator(Heap& heap, const Value& value);

  std::optional<Value> next();

 private:
  Heap& heap_;
  Value value_;
  uint64_t position_ = 0;  // an index, or a string's byte
};

std::vector<Value> items_of(Heap& heap, const Value& value);

// An attribute as filters name it: "author.name", "0.title" or an index.
class AttributePath {
 public:
  // None names the item itself.
  AttributePath(Heap& heap, const Value& attribute);

  // `otherwise` stands for an undefined attribute unless it is None.
  Value get(const Value& item, const Value& otherwise = {}) const;

 private:
  Heap& heap_;
  std::vector<Value> parts_;
};

// The key that the sorting filters compare: a string in lower case unless case matters.
Value sort_key(Heap& heap, Value value, bool case_sensitive);

}  // namespace lockstep::jinja
