#include "engine/text/jinja/operations.h"

#include <algorithm>
#include <cmath>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/text_operations.h"

namespace lockstep::jinja {

namespace {

template <typename T>
bool holds(Operator operation, const T& left, const T& right) {
  switch (operation) {
    case Operator::kLess:
      return left < right;
    case Operator::kLessEqual:
      return left <= right;
    case Operator::kGreater:
      return left > right;
    default:
      return left >= right;
  }
}

std::string_view symbol(Operator operation) {
  switch (operation) {
    case Operator::kLess:
      return "<";
    case Operator::kLessEqual:
      return "<=";
    case Operator::kGreater:
      return ">";
    default:
      return ">=";
  }
}

bool ordered(Heap& heap, Operator operation, const Value& left, const Value& right) {
  heap.step();
  if (left.is_number() && right.is_number()) return holds(operation, left.exact(), right.exact());
  if (left.is_string() && right.is_string()) {
    heap.step_bytes(std::min(left.text().size(), right.text().size()));
    return holds(operation, left.text(), right.text());  // UTF-8 sorts as its code points do
  }
  const ListData* first = left.sequence();
  const ListData* second = right.sequence();
  if (first != nullptr && second != nullptr && first->tuple == second->tuple) {
    const size_t common = std::min(first->items.size(), second->items.size());
    for (size_t index = 0; index < common; ++index) {
      if (!equal(heap, first->items[index], second->items[index])) {
        return ordered(heap, operation, first->items[index], second->items[index]);
      }
    }
    return holds(operation, first->items.size(), second->items.size());
  }
  require_defined(left);
  require_defined(right);
  fail("'{}' not supported between instances of '{}' and '{}'", symbol(operation), type_name(left),
       type_name(right));
}

bool contains_in_object(Heap& heap, const Value& container, const Value& item) {
  if (const auto* range = container.object_as<Range>()) {
    if (item.is_integral()) return range->contains(item.integral());
    if (item.is_float()) {
      const double number = item.floating();
      constexpr double kExactLimit = 9007199254740992.0;  // 2^53
      return std::abs(number) <= kExactLimit && std::floor(number) == number &&
             range->contains(static_cast<int64_t>(number));
    }
    return false;
  }
  if (const auto* view = container.object_as<DictView>();
      view != nullptr && view->part() == DictView::Part::kKeys) {
    return view->values()[0].dict()->find(heap, item) != nullptr;
  }
  Iterator iterator(heap, container);
  while (const auto candidate = iterator.next()) {
    if (equal(heap, *candidate, item)) return true;
  }
  return false;
}

}  // namespace

bool less(Heap& heap, const Value& left, const Value& right) {
  return ordered(heap, Operator::kLess, left, right);
}

bool contains(Heap& heap, const Value& container, const Value& item) {
  heap.step();
  if (container.is_string()) {
    if (!item.is_string()) {
      fail("'in <string>' requires a string as left operand, not {}", describe(item));
    }
    heap.step_bytes(container.text().size());
    return find_text(container.text(), item.text()) != std::string_view::npos;
  }
  if (const ListData* list = container.sequence()) {
    return std::ranges::any_of(
        list->items, [&](const Value& candidate) { return equal(heap, candidate, item); });
  }
  if (const DictData* dict = container.dict()) return dict->find(heap, item) != nullptr;
  if (container.is_undefined()) return false;
  if (!is_iterable(container)) fail("argument of type '{}' is not iterable", type_name(container));
  return contains_in_object(heap, container, item);
}

bool compare(Heap& heap, Operator operation, const Value& left, const Value& right) {
  switch (operation) {
    case Operator::kEqual:
      return equal(heap, left, right);
    case Operator::kNotEqual:
      return !equal(heap, left, right);
    case Operator::kIn:
      return contains(heap, right, left);
    case Operator::kNotIn:
      return !contains(heap, right, left);
    default:
      return ordered(heap, operation, left, right);
  }
}

std::optional<uint64_t> length(Heap& heap, const Value& value) {
  if (value.is_string()) {
    heap.step_bytes(value.text().size());
    return character_count(value.text());
  }
  if (const ListData* list = value.sequence()) return list->items.size();
  if (const DictData* dict = value.dict()) return dict->entries.size();
  if (value.is_undefined()) return 0;
  if (Object* object = value.object()) return object->length();
  return std::nullopt;
}

bool is_iterable(const Value& value) {
  if (const Object* object = value.object()) {
    return object->iteration() != Object::Iteration::kNone;
  }
  return value.is_string() || value.sequence() != nullptr || value.dict() != nullptr ||
         value.is_undefined();
}

Iterator::Iterator(Heap& heap, const Value& value) : heap_(heap), value_(value) {
  if (!is_iterable(value)) fail("'{}' object is not iterable", type_name(value));
}

std::optional<Value> Iterator::next() {
  heap_.step();
  if (const ListData* list = value_.sequence()) {
    if (position_ >= list->items.size()) return std::nullopt;
    return list->items[position_++];
  }
  if (const DictData* dict = value_.dict()) {
    if (position_ >= dict->entries.size()) return std::nullopt;
    return dict->entries[position_++].first;
  }
  if (value_.is_string()) {
    const std::string_view rest = std::string_view(value_.text()).substr(position_);
    if (rest.empty()) return std::nullopt;
    const size_t bytes = first_character(rest).bytes;
    position_ += bytes;
    return make_string(heap_, traced_part(value_, rest.substr(0, bytes)));
  }
  if (Object* object = value_.object()) {
    if (object->iteration() == Object::Iteration::kOnce) return object->next();
    if (position_ >= object->length().value_or(0)) return std::nullopt;
    return object->item(position_++);
  }
  return std::nullopt;  // undefined: as if empty
}

std::vector<Value> items_of(Heap& heap, const Value& value) {
  std::vector<Value> items;
  Iterator iterator(heap, value);
  while (auto item = iterator.next()) items.push_back(std::move(*item));
  return items;
}

}  // namespace lockstep::jinja
