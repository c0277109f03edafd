#include "engine/text/jinja/value.h"

#include <algorithm>

namespace lockstep::jinja {

namespace {

// A container one deeper than what it holds; refused beyond the limit.
uint32_t container_depth(const Heap& heap, uint32_t deepest_item) {
  if (deepest_item >= heap.limits().depth) {
    Failure failure{fmt::format("a value nests deeper than the depth budget of {} allows",
                                heap.limits().depth)};
    failure.budget = true;
    throw failure;
  }
  return deepest_item + 1;
}

bool equal_dicts(Heap& heap, const DictData& left, const DictData& right) {
  if (left.entries.size() != right.entries.size()) return false;
  return std::ranges::all_of(left.entries, [&](const DictData::Entry& entry) {
    const Value* other = right.find(heap, entry.first);
    return other != nullptr && equal(heap, entry.second, *other);
  });
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

Heap::~Heap() {
  digging_ = true;
  for (Object* object = objects_; object != nullptr; object = object->next_) {
    graves_.push_back(std::move(object->values_));
    object->values_.clear();
  }
  dig();
}

void Heap::add_object(Object& object) {
  // While graves are dug, each object that is alive fills one at most.
  const size_t graves = object_count_ + 2;
  if (graves_.capacity() < graves) graves_.reserve(2 * graves);
  ++object_count_;
  object.next_ = objects_;
  if (objects_ != nullptr) objects_->previous_ = &object;
  objects_ = &object;
}

void Heap::remove_object(Object& object) noexcept {
  --object_count_;
  if (object.previous_ != nullptr) {
    object.previous_->next_ = object.next_;
  } else {
    objects_ = object.next_;
  }
  if (object.next_ != nullptr) object.next_->previous_ = object.previous_;
}

void Heap::bury(std::vector<Value>&& values) noexcept {
  graves_.push_back(std::move(values));
  if (!digging_) dig();
}

void Heap::dig() noexcept {
  digging_ = true;
  while (!graves_.empty()) {
    // A value that dies here may bury more: it is only added to the list.
    const std::vector<Value> grave = std::move(graves_.back());
    graves_.pop_back();
  }
  digging_ = false;
}

Value Value::undefined(std::string explanation, bool unsafe) {
  return Value(
      std::make_shared<const UndefinedData>(UndefinedData{std::move(explanation), unsafe}));
}

Value Value::constant(std::string text) {
  return Value(std::make_shared<const StringData>(std::move(text)));
}

bool Value::is_list() const {
  const ListData* data = sequence();
  return data != nullptr && !data->tuple;
}

bool Value::is_tuple() const {
  const ListData* data = sequence();
  return data != nullptr && data->tuple;
}

int64_t Value::integral() const {
  if (const auto* flag = std::get_if<bool>(&storage_)) return *flag ? 1 : 0;
  return std::get<int64_t>(storage_);
}

double Value::floating() const {
  if (const auto* number = std::get_if<double>(&storage_)) return *number;
  return static_cast<double>(integral());
}

long double Value::exact() const {
  return is_float() ? static_cast<long double>(floating()) : static_cast<long double>(integral());
}

const TracedText& Value::traced() const {
  return std::get<std::shared_ptr<const StringData>>(storage_)->content;
}

bool Value::is_markup() const {
  const auto* data = pointer<StringData>();
  return data != nullptr && data->markup;
}

uint32_t Value::depth() const {
  if (const ListData* data = sequence()) return data->depth;
  if (const DictData* data = dict()) return data->depth;
  return 0;
}

bool Value::same_as(const Value& other) const {
  if (storage_.index() != other.storage_.index()) return false;
  if (is_float() || is_string()) {
    // Python may or may not share equal numbers and texts; we say that it does.
    return is_float() ? floating() == other.floating() : text() == other.text();
  }
  if (is_undefined()) return pointer<UndefinedData>() == other.pointer<UndefinedData>();
  return storage_ == other.storage_;
}

ListData::ListData(Heap& heap, std::vector<Value> content, bool is_tuple)
    : charge(heap, 96 + content.size() * sizeof(Value)),
      items(std::move(content)),
      tuple(is_tuple) {
  uint32_t deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.depth());
  depth = container_depth(heap, deepest);
}

DictData::DictData(Heap& heap, std::vector<Entry> content)
    : charge(heap, 96 + content.size() * sizeof(Entry)), entries(std::move(content)) {
  uint32_t deepest = 0;
  for (const auto& [key, value] : entries) {
    deepest = std::max({deepest, key.depth(), value.depth()});
  }
  depth = container_depth(heap, deepest);
}

const Value* DictData::find(Heap& heap, const Value& key) const {
  check_hashable(heap, key);
  if (key.is_string()) return find(heap, std::string_view(key.text()));
  heap.step(entries.size() / 16);
  for (const auto& [name, value] : entries) {
    if (equal(heap, name, key)) return &value;
  }
  return nullptr;
}

const Value* DictData::find(Heap& heap, std::string_view key) const {
  heap.step(entries.size() / 16);
  for (const auto& [name, value] : entries) {
    if (name.is_string() && name.text() == key) return &value;
  }
  return nullptr;
}

Value make_string(Heap& heap, TracedText text, bool markup) {
  return Value(std::make_shared<const StringData>(heap, std::move(text), markup));
}

Value make_own_string(Heap& heap, std::string text) {
  return make_string(heap, TracedText(std::move(text), false));
}

Value make_foreign_string(Heap& heap, std::string text) {
  return make_string(heap, TracedText(std::move(text), true));
}

Value make_list(Heap& heap, std::vector<Value> items) {
  return Value(std::make_shared<const ListData>(heap, std::move(items), false));
}

Value make_tuple(Heap& heap, std::vector<Value> items) {
  return Value(std::make_shared<const ListData>(heap, std::move(items), true));
}

Value make_dict(Heap& heap, std::vector<DictData::Entry> entries) {
  std::vector<DictData::Entry> kept;
  kept.reserve(entries.size());
  for (auto& [key, value] : entries) {
    check_hashable(heap, key);
    heap.step(1 + kept.size() / 16);
    const auto same = std::ranges::find_if(
        kept, [&](const DictData::Entry& entry) { return equal(heap, entry.first, key); });
    if (same != kept.end()) {
      same->second = std::move(value);
    } else {
      kept.emplace_back(std::move(key), std::move(value));
    }
  }
  return Value(std::make_shared<const DictData>(heap, std::move(kept)));
}

Object::Object(Heap& heap, std::vector<Value> values)
    : heap_(heap), values_(std::move(values)), charge_(heap, 192 + values_.size() * sizeof(Value)) {
  heap.add_object(*this);
}

Object::~Object() {
  heap_.remove_object(*this);
  if (!values_.empty()) heap_.bury(std::move(values_));
}

std::optional<Value> Object::attribute(std::string_view) {
  return std::nullopt;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): others keep what they are called with.
Value Object::call(Arguments) {
  fail("'{}' object is not callable", type_name());
}

Value Object::item(uint64_t) {
  fail("'{}' object is not subscriptable", type_name());
}

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
  if (left.is_number() && right.is_number()) return left.exact() == right.exact();
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
    return left.object()->equals(*right.object());
  }
  return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

void check_hashable(Heap& heap, const Value& value) {
  if (!is_hashable(heap, value)) fail("unhashable type: '{}'", type_name(value));
}

}  // namespace lockstep::jinja
