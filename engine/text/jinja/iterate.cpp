#include "engine/text/jinja/iterate.h"

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/text_operations.h"

namespace lockstep::jinja {

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
