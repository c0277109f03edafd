// The values of templates, as Python's: cheap to copy, sharing what they refer to. Strings, lists,
// tuples and dicts never change once made; what does change (namespaces, loops, iterators) is an
// Object. Containers know how deep they nest, and none nests deeper than TemplateLimits::depth, so
// whatever walks a value is bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/text/jinja/budget.h"
#include "engine/text/traced_text.h"

namespace lockstep::jinja {

class Object;
class Value;
struct StringData;
struct ListData;
struct DictData;
struct UndefinedData;

// The values of one rendering: every string, list, dict and object that it makes is charged here
// and given back when it dies.
class Heap : public Budget {
 public:
  using Budget::Budget;
  // Ends the cycles that mutable objects may have made. All other values must be gone by then.
  ~Heap();

  // Destroys what an object held, one object at a time: a long chain of objects must not become a
  // deep recursion of destructors. Takes no memory.
  void bury(std::vector<Value>&& values) noexcept;

 private:
  friend class Object;

  // Called of each object as it begins to live and as it dies. add_object() sees to it that bury()
  // needs no memory: it throws std::bad_alloc, and then the object is not known.
  void add_object(Object& object);
  void remove_object(Object& object) noexcept;
  void dig() noexcept;

  Object* objects_ = nullptr;  // all that are alive
  size_t object_count_ = 0;    // of them
  std::vector<std::vector<Value>> graves_;
  bool digging_ = false;
};

class Value {
 public:
  Value() = default;  // None
  Value(bool value) : storage_(value) {}
  Value(int64_t value) : storage_(value) {}
  Value(double value) : storage_(value) {}
  Value(std::shared_ptr<const StringData> data) : storage_(std::move(data)) {}
  Value(std::shared_ptr<const ListData> data) : storage_(std::move(data)) {}
  Value(std::shared_ptr<const DictData> data) : storage_(std::move(data)) {}
  Value(std::shared_ptr<const UndefinedData> data) : storage_(std::move(data)) {}
  Value(std::shared_ptr<Object> object) : storage_(std::move(object)) {}
  template <typename T>
  Value(T*) = delete;

  // A count or an index that surely fits.
  static Value integer(uint64_t value) { return Value(static_cast<int64_t>(value)); }
  static Value undefined(std::string explanation, bool unsafe = false);
  // A string that belongs to a template, not to a rendering. The template's own text.
  static Value constant(std::string text);

  bool is_none() const { return std::holds_alternative<std::monostate>(storage_); }
  bool is_undefined() const { return pointer<UndefinedData>() != nullptr; }
  bool is_string() const { return pointer<StringData>() != nullptr; }
  bool is_list() const;  // a list, not a tuple
  bool is_tuple() const;
  bool is_number() const { return is_integral() || is_float(); }
  bool is_integral() const { return is_boolean() || is_integer(); }  // int, of which bool is one
  bool is_boolean() const { return std::holds_alternative<bool>(storage_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(storage_); }
  bool is_float() const { return std::holds_alternative<double>(storage_); }

  bool boolean() const { return std::get<bool>(storage_); }
  int64_t integral() const;  // of an int or a bool
  double floating() const;   // of any number
  // Any number: the x86 long double holds every int64 and every double.
  long double exact() const;
  const std::string& text() const { return traced().text; }
  const TracedText& traced() const;  // of a string
  bool is_markup() const;            // a string that the escape or safe filter made

  const ListData* sequence() const { return pointer<ListData>(); }  // a list or a tuple
  const DictData* dict() const { return pointer<DictData>(); }
  const UndefinedData* undefined_data() const { return pointer<UndefinedData>(); }
  Object* object() const {
    const auto* held = std::get_if<std::shared_ptr<Object>>(&storage_);
    return held == nullptr ? nullptr : held->get();
  }
  template <typename T>
  T* object_as() const {
    return dynamic_cast<T*>(object());
  }

  // 0 for what holds nothing; objects count as such, they are walked with a count of their own.
  uint32_t depth() const;
  // Python's `is`, as far as it can be told.
  bool same_as(const Value& other) const;

 private:
  template <typename T>
  const T* pointer() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&storage_);
    return held == nullptr ? nullptr : held->get();
  }

  std::variant<std::monostate, bool, int64_t, double, std::shared_ptr<const StringData>,
               std::shared_ptr<const ListData>, std::shared_ptr<const DictData>,
               std::shared_ptr<const UndefinedData>, std::shared_ptr<Object>>
      storage_;
};

// The part of a rendering's memory that one value holds; 0 bytes for a template's constants.
class Charge {
 public:
  Charge() = default;
  Charge(Heap& heap, uint64_t bytes) : heap_(&heap), bytes_(bytes) { heap.take(bytes); }
  ~Charge() {
    if (heap_ != nullptr) heap_->give(bytes_);
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  Heap* heap_ = nullptr;
  uint64_t bytes_ = 0;
};

struct StringData {
  explicit StringData(std::string own) : content(std::move(own), false) {}
  StringData(Heap& heap, TracedText traced, bool is_markup)
      : charge(heap, 96 + traced.text.size() + traced.foreign.size() * sizeof(TextRange)),
        content(std::move(traced)),
        markup(is_markup) {}

  Charge charge;
  TracedText content;  // UTF-8
  bool markup = false;
};

struct ListData {
  ListData(Heap& heap, std::vector<Value> content, bool is_tuple);

  Charge charge;
  std::vector<Value> items;
  bool tuple = false;
  bool group = false;  // a tuple made by groupby: has the attributes grouper and list
  uint32_t depth = 1;
};

struct DictData {
  using Entry = std::pair<Value, Value>;
  DictData(Heap& heap, std::vector<Entry> content);

  // The value of a key; nullptr when there is none. Fails for a key that has no hash.
  const Value* find(Heap& heap, const Value& key) const;
  const Value* find(Heap& heap, std::string_view key) const;

  Charge charge;
  std::vector<Entry> entries;  // in the order of insertion; keys differ
  uint32_t depth = 1;
};

struct UndefinedData {
  std::string explanation;  // "'x' is undefined"
  bool unsafe = false;      // an attribute that the sandbox hides
};

// There is no overload for a plain std::string: the caller that makes a string says where it comes
// from.
Value make_string(Heap& heap, TracedText text, bool markup = false);
// The template's own text, and text of the request.
Value make_own_string(Heap& heap, std::string text);
Value make_foreign_string(Heap& heap, std::string text);
Value make_list(Heap& heap, std::vector<Value> items);
Value make_tuple(Heap& heap, std::vector<Value> items);
// The last of several equal keys wins and stands where the first stood, as in Python.
Value make_dict(Heap& heap, std::vector<DictData::Entry> entries);

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A value with behaviour. All values that it refers to are in values_, so that the heap can let go
// of them.
class Object : public std::enable_shared_from_this<Object> {
 public:
  enum class Iteration { kNone, kIndexed, kOnce };

  Object(Heap& heap, std::vector<Value> values);
  virtual ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  virtual std::string_view type_name() const = 0;
  virtual std::string shown_as() const { return std::string(type_name()); }  // inside <...>
  virtual bool truth() const { return true; }
  virtual std::optional<uint64_t> length() { return std::nullopt; }
  virtual std::optional<Value> attribute(std::string_view name);
  virtual bool callable() const { return false; }
  virtual Value call(Arguments arguments);
  virtual bool equals(const Object& other) const { return this == &other; }
  virtual Iteration iteration() const { return Iteration::kNone; }
  // kIndexed: the item at an index below length(). kOnce: the next item; nullopt at the end.
  virtual Value item(uint64_t index);
  virtual std::optional<Value> next() { return std::nullopt; }
  const std::vector<Value>& values() const { return values_; }

 protected:
  Heap& heap_;
  std::vector<Value> values_;

 private:
  friend class Heap;
  Charge charge_;
  Object* previous_ = nullptr;
  Object* next_ = nullptr;
};

std::string_view type_name(const Value& value);
// How an error speaks of a value: "an int", or, for an undefined one, what is undefined.
std::string describe(const Value& value);
// Fails with the explanation when the value is undefined.
void require_defined(const Value& value);

bool truth(Heap& heap, const Value& value);
bool equal(Heap& heap, const Value& left, const Value& right);
void check_hashable(Heap& heap, const Value& value);  // fails for what has no hash

}  // namespace lockstep::jinja
