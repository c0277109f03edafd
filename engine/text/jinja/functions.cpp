// The global functions.
#include <algorithm>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/operations.h"

namespace lockstep::jinja {

namespace {

int64_t range_argument(const Value& value) {
  require_defined(value);
  if (!value.is_integral()) {
    fail("'{}' object cannot be interpreted as an integer", type_name(value));
  }
  return value.integral();
}

Value range(Heap& heap, BoundArguments& arguments) {
  const int64_t first = range_argument(arguments.value(0));
  const int64_t start = arguments.has(1) ? first : 0;
  const int64_t stop = arguments.has(1) ? range_argument(arguments.value(1)) : first;
  const int64_t step = arguments.has(2) ? range_argument(arguments.value(2)) : 1;
  return Value(std::shared_ptr<Object>(std::make_shared<Range>(heap, start, stop, step)));
}

// The entries that dict(...) makes of its arguments: of a mapping or of pairs, then by name.
std::vector<DictData::Entry> entries_of(Heap& heap, Arguments& arguments) {
  std::vector<DictData::Entry> entries;
  if (arguments.positional.size() > 1) fail("dict expected at most 1 argument");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (const DictData* dict = source.dict()) {
      entries = dict->entries;
    } else {
      Iterator iterator(heap, source);
      while (const auto item = iterator.next()) {
        std::vector<Value> pair = items_of(heap, *item);
        if (pair.size() != 2) {
          fail("a dict is made of pairs; one element has length {}", pair.size());
        }
        entries.emplace_back(std::move(pair[0]), std::move(pair[1]));
      }
    }
  }
  for (auto& [name, value] : arguments.named) {
    entries.emplace_back(make_foreign_string(heap, name), std::move(value));
  }
  return entries;
}

Value dict(Heap& heap, BoundArguments& arguments) {
  return make_dict(heap, entries_of(heap, arguments.all()));
}

Value dict_from_keys(Heap& heap, BoundArguments& arguments) {
  std::vector<DictData::Entry> entries;
  Iterator iterator(heap, arguments.value(0));
  while (auto key = iterator.next()) entries.emplace_back(std::move(*key), arguments.value(1));
  return make_dict(heap, std::move(entries));
}

Value make_namespace(Heap& heap, BoundArguments& arguments) {
  const Value attributes = make_dict(heap, entries_of(heap, arguments.all()));
  const auto space = std::make_shared<Namespace>(heap);
  for (const auto& [name, value] : attributes.dict()->entries) {
    if (name.is_string()) space->set(name.text(), value);
  }
  return Value(std::shared_ptr<Object>(space));
}

Value make_cycler(Heap& heap, BoundArguments& arguments) {
  if (arguments.all().positional.empty()) fail("at least one item has to be provided");
  return Value(std::shared_ptr<Object>(
      std::make_shared<Cycler>(heap, std::move(arguments.all().positional))));
}

Value make_joiner(Heap& heap, BoundArguments& arguments) {
  return Value(std::shared_ptr<Object>(std::make_shared<Joiner>(
      heap, arguments.has(0) ? arguments.value(0) : make_own_string(heap, ", "))));
}

Value raise_exception(Heap& heap, BoundArguments& arguments) {
  Failure failure{to_str(heap, arguments.value(0)).text};
  failure.raised = true;
  throw failure;
}

constexpr Native kFunctions[] = {
    {"cycler", make_cycler, Native::kAnyNumber},
    {"dict", dict, Native::kAnyNumber},
    {"dict.fromkeys", dict_from_keys, 1, {"iterable", "value"}},
    {"joiner", make_joiner, 0, {"sep"}},
    {"namespace", make_namespace, Native::kAnyNumber},
    {"raise_exception", raise_exception, 1, {"message"}},
    {"range", range, 1, {"start", "stop", "step"}},
};

}  // namespace

const Native* find_function(std::string_view name) {
  const auto found = std::ranges::find(kFunctions, name, &Native::name);
  return found == std::end(kFunctions) ? nullptr : found;
}

}  // namespace lockstep::jinja
