#include "engine/text/jinja/attribute_path.h"

#include <algorithm>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/text_operations.h"

namespace lockstep::jinja {

AttributePath::AttributePath(Heap& heap, const Value& attribute) : heap_(heap) {
  if (attribute.is_none()) return;
  if (!attribute.is_string()) {
    parts_.push_back(attribute);
    return;
  }
  std::string_view rest = attribute.text();
  heap.step_bytes(rest.size());
  while (true) {
    heap.step();
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool index =
        !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    parts_.push_back(index ? Value(*parse_integer(part, 10))
                           : make_own_string(heap, std::string(part)));
    if (dot == rest.size()) break;
    rest.remove_prefix(dot + 1);
  }
}

Value AttributePath::get(const Value& item, const Value& otherwise) const {
  Value value = item;
  for (const Value& part : parts_) {
    value = get_item(heap_, value, part);
    if (value.is_undefined() && !otherwise.is_none()) value = otherwise;
  }
  return value;
}

Value sort_key(Heap& heap, Value value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  heap.step_bytes(value.text().size());
  return like(heap, value, to_lower(value.text()));
}

}  // namespace lockstep::jinja
