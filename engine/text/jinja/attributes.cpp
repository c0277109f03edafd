#include <algorithm>
#include <array>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/text_operations.h"

namespace lockstep::jinja {
namespace {

constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear", "pop",    "reverse",
                                                          "insert", "sort",  "extend", "remove"};
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault",
                                                          "update"};

// Attributes that exist in Python but that the sandbox hides: its own internals, and what would
// change a list or a dict.
bool is_hidden(const Value& object, std::string_view name) {
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) return true;
  if (object.is_list()) return std::ranges::find(kListChanges, name) != kListChanges.end();
  if (object.dict() != nullptr) return std::ranges::find(kDictChanges, name) != kDictChanges.end();
  return false;
}

Value missing(const Value& object, std::string_view name) {
  const std::string owner = object.is_none() ? "None" : fmt::format("{} object", type_name(object));
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", owner, name));
}

std::optional<Value> number_attribute(const Value& object, std::string_view name) {
  if (object.is_integral() && (name == "real" || name == "numerator")) {
    return Value(object.integral());
  }
  if (object.is_integral() && (name == "imag" || name == "denominator")) {
    return Value(int64_t{name == "imag" ? 0 : 1});
  }
  if (object.is_float() && name == "real") return object;
  if (object.is_float() && name == "imag") return Value(0.0);
  return std::nullopt;
}

// The result of Python's getattr, as far as the sandbox shows it.
std::optional<Value> find_attribute(Heap& heap, const Value& object, std::string_view name) {
  if (Object* held = object.object()) {
    if (auto value = held->attribute(name)) return value;
  }
  if (is_hidden(object, name)) {
    return Value::undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe", name, type_name(object)),
        true);
  }
  if (auto method = get_method(heap, object, name)) return method;
  if (const ListData* list = object.sequence(); list != nullptr && list->group) {
    if (name == "grouper") return list->items[0];
    if (name == "list") return list->items[1];
  }
  return number_attribute(object, name);
}

std::optional<Value> item_at(Heap& heap, const Value& object, int64_t index) {
  const auto count = length(heap, object);
  if (!count) return std::nullopt;
  if (index < 0) index += static_cast<int64_t>(*count);
  if (index < 0 || static_cast<uint64_t>(index) >= *count) return std::nullopt;
  const auto position = static_cast<uint64_t>(index);
  if (const ListData* list = object.sequence()) return list->items[position];
  if (auto* range = object.object_as<Range>()) return range->item(position);
  if (!object.is_string()) return std::nullopt;
  const std::string_view text = object.text();
  const std::string_view rest = text.substr(byte_offset(text, position));
  return part_of(heap, object, rest.substr(0, first_character(rest).bytes));
}

struct Slice {
  int64_t start;
  int64_t stop;
  int64_t step;
  uint64_t count;
};

int64_t slice_bound(const Value& bound, int64_t otherwise, int64_t least, int64_t most,
                    int64_t count) {
  if (bound.is_none()) return otherwise;
  require_defined(bound);
  if (!bound.is_integral()) {
    fail("slice indices must be integers or None, not {}", describe(bound));
  }
  int64_t index = bound.integral();
  if (index < 0) index = index < -count ? least : index + count;
  return std::clamp(index, least, most);
}

Slice resolve_slice(const Value& start, const Value& stop, const Value& step, uint64_t length) {
  const auto count = static_cast<int64_t>(length);
  int64_t stride = 1;
  if (!step.is_none()) {
    require_defined(step);
    if (!step.is_integral()) fail("slice step must be an integer, not {}", describe(step));
    stride = step.integral();
    if (stride == 0) fail("slice step cannot be zero");
  }
  const int64_t least = stride > 0 ? 0 : -1;
  const int64_t most = stride > 0 ? count : count - 1;
  const int64_t first = slice_bound(start, stride > 0 ? least : most, least, most, count);
  const int64_t last = slice_bound(stop, stride > 0 ? most : least, least, most, count);
  const int64_t distance = stride > 0 ? last - first : first - last;
  if (distance <= 0) return {first, last, stride, 0};
  const uint64_t size =
      stride > 0 ? static_cast<uint64_t>(stride) : 0 - static_cast<uint64_t>(stride);
  return {first, last, stride, (static_cast<uint64_t>(distance) - 1) / size + 1};
}

Value slice_string(Heap& heap, const Value& object, const Slice& slice) {
  const std::string_view text = object.text();
  heap.step_bytes(text.size());
  if (slice.step == 1 || slice.count == 0) {
    const size_t begin = byte_offset(text, static_cast<size_t>(slice.start));
    const size_t bytes = byte_offset(text.substr(begin), slice.count);
    return part_of(heap, object, text.substr(begin, slice.count == 0 ? 0 : bytes));
  }
  heap.step(slice.count / 8);
  heap.reserve(text.size() * (1 + sizeof(std::string_view)));
  std::vector<std::string_view> characters;
  for (std::string_view rest = text; !rest.empty();) {
    characters.push_back(rest.substr(0, first_character(rest).bytes));
    rest.remove_prefix(characters.back().size());
  }
  TracedText result;
  int64_t index = slice.start;
  for (uint64_t taken = 0; taken < slice.count; ++taken) {
    const std::string_view character = characters[static_cast<size_t>(index)];
    result.append(object.traced(), static_cast<size_t>(character.data() - text.data()),
                  character.size());
    if (taken + 1 < slice.count) index += slice.step;
  }
  return make_string(heap, std::move(result), object.is_markup());
}

Value slice_sequence(Heap& heap, const ListData& list, const Slice& slice) {
  heap.step(slice.count / 4);
  heap.reserve(slice.count * sizeof(Value));
  std::vector<Value> items;
  items.reserve(slice.count);
  int64_t index = slice.start;
  for (uint64_t taken = 0; taken < slice.count; ++taken) {
    items.push_back(list.items[static_cast<size_t>(index)]);
    if (taken + 1 < slice.count) index += slice.step;
  }
  return list.tuple ? make_tuple(heap, std::move(items)) : make_list(heap, std::move(items));
}

Value slice_range(Heap& heap, const Range& range, const Slice& slice) {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 0;
  const bool overflow = __builtin_mul_overflow(slice.start, range.step(), &start) ||
                        __builtin_add_overflow(range.start(), start, &start) ||
                        __builtin_mul_overflow(slice.stop, range.step(), &stop) ||
                        __builtin_add_overflow(range.start(), stop, &stop) ||
                        __builtin_mul_overflow(slice.step, range.step(), &step);
  if (overflow) fail("integer overflow in a slice of a range");
  return Value(std::shared_ptr<Object>(std::make_shared<Range>(heap, start, stop, step)));
}

}  // namespace

std::optional<Value> get_method(Heap& heap, const Value& object, std::string_view name) {
  const Native* native = find_method(object, name);
  if (native == nullptr) return std::nullopt;
  return Callable::make(heap, *native, object);
}

Value get_own_attribute(Heap& heap, const Value& object, std::string_view name) {
  heap.step();
  require_defined(object);
  if (auto value = find_attribute(heap, object, name)) return *value;
  return missing(object, name);
}

Value get_attribute(Heap& heap, const Value& object, std::string_view name) {
  heap.step();
  require_defined(object);
  if (auto value = find_attribute(heap, object, name)) return *value;
  if (const DictData* dict = object.dict()) {
    if (const Value* value = dict->find(heap, name)) return *value;
  }
  return missing(object, name);
}

Value get_item(Heap& heap, const Value& object, const Value& key) {
  heap.step();
  require_defined(object);
  if (const DictData* dict = object.dict()) {
    const bool hashable = !key.is_list() && key.dict() == nullptr;
    if (const Value* value = hashable ? dict->find(heap, key) : nullptr) return *value;
  } else if (key.is_integral()) {
    if (auto item = item_at(heap, object, key.integral())) return *item;
  }
  if (key.is_string()) {
    if (auto value = find_attribute(heap, object, key.text())) return *value;
    return missing(object, key.text());
  }
  return Value::undefined(
      fmt::format("{} has no element {}", describe(object), to_repr(heap, key).text));
}

Value get_slice(Heap& heap, const Value& object, const Value& start, const Value& stop,
                const Value& step) {
  heap.step();
  require_defined(object);
  const auto* range = object.object_as<Range>();
  if (!object.is_string() && object.sequence() == nullptr && range == nullptr) {
    fail("{} cannot be sliced", describe(object));
  }
  const Slice slice = resolve_slice(start, stop, step, *length(heap, object));
  if (object.is_string()) return slice_string(heap, object, slice);
  if (range != nullptr) return slice_range(heap, *range, slice);
  return slice_sequence(heap, *object.sequence(), slice);
}

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
