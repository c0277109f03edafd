#include "engine/text/jinja/operations.h"

#include <algorithm>
#include <cmath>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/iterate.h"
#include "engine/text/jinja/objects.h"

namespace lockstep::jinja {

namespace {

// Numbers compare exactly: the x86 long double holds every int64 and every double.
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

long double exact(const Value& number) {
  return number.is_float() ? static_cast<long double>(number.floating())
                           : static_cast<long double>(number.integral());
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
  if (left.is_number() && right.is_number()) return holds(operation, exact(left), exact(right));
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

bool equal_dicts(Heap& heap, const DictData& left, const DictData& right) {
  if (left.entries.size() != right.entries.size()) return false;
  return std::ranges::all_of(left.entries, [&](const DictData::Entry& entry) {
    const Value* other = right.find(heap, entry.first);
    return other != nullptr && equal(heap, entry.second, *other);
  });
}

bool equal_objects(Heap& heap, Object& left, Object& right) {
  if (&left == &right) return true;
  auto* first = dynamic_cast<Range*>(&left);
  auto* second = dynamic_cast<Range*>(&right);
  if (first == nullptr || second == nullptr || first->length() != second->length()) return false;
  const uint64_t count = *first->length();
  if (count == 0) return true;
  heap.step();
  return first->start() == second->start() && (count == 1 || first->step() == second->step());
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

bool is_hashable(Heap& heap, const Value& value) {
  heap.step();
  if (value.is_tuple()) {
    return std::ranges::all_of(value.sequence()->items,
                               [&](const Value& item) { return is_hashable(heap, item); });
  }
  return !value.is_list() && value.dict() == nullptr;
}

}  // namespace

std::string_view type_name(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.is_boolean()) return "bool";
  if (value.is_integer()) return "int";
  if (value.is_float()) return "float";
  if (value.is_string()) return value.is_markup() ? "Markup" : "str";
  if (value.is_list()) return "list";
  if (value.is_tuple()) return "tuple";
  if (value.dict() != nullptr) return "dict";
  if (value.is_undefined()) return "Undefined";
  return value.object()->type_name();
}

std::string describe(const Value& value) {
  if (const UndefinedData* data = value.undefined_data()) return data->explanation;
  return fmt::format("'{}' object", type_name(value));
}

void require_defined(const Value& value) {
  if (const UndefinedData* data = value.undefined_data()) fail("{}", data->explanation);
}

bool truth(Heap& heap, const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  if (value.is_integral()) return value.integral() != 0;
  if (value.is_float()) return value.floating() != 0;
  if (value.is_string()) return !value.text().empty();
  if (const ListData* list = value.sequence()) return !list->items.empty();
  if (const DictData* dict = value.dict()) return !dict->entries.empty();
  heap.step();
  return value.object()->truth();
}

bool equal(Heap& heap, const Value& left, const Value& right) {
  heap.step();
  if (left.is_number() && right.is_number()) return exact(left) == exact(right);
  if (left.is_string() && right.is_string()) {
    heap.step(std::min(left.text().size(), right.text().size()) / 64);
    return left.text() == right.text();
  }
  const ListData* first = left.sequence();
  const ListData* second = right.sequence();
  if (first != nullptr && second != nullptr) {
    return first->tuple == second->tuple &&
           std::ranges::equal(first->items, second->items,
                              [&](const Value& a, const Value& b) { return equal(heap, a, b); });
  }
  if (left.dict() != nullptr && right.dict() != nullptr) {
    return equal_dicts(heap, *left.dict(), *right.dict());
  }
  if (left.object() != nullptr && right.object() != nullptr) {
    return equal_objects(heap, *left.object(), *right.object());
  }
  return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

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

void check_hashable(Heap& heap, const Value& value) {
  if (!is_hashable(heap, value)) fail("unhashable type: '{}'", type_name(value));
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

}  // namespace lockstep::jinja
