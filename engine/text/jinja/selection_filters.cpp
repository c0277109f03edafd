// The filters that apply others: map, select and their kin. All are lazy.
#include <algorithm>
#include <array>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/operations.h"

namespace lockstep::jinja {

namespace {

std::string_view name_of(const Value& name, std::string_view what) {
  if (!name.is_string()) fail("the name of a {} must be a string, not {}", what, describe(name));
  return name.text();
}

// The attribute that map(attribute=...) names.
void map_attribute(Heap& heap, const Value& self, Arguments& given, std::vector<Value>& mapped) {
  Value path_name;
  Value otherwise;
  for (auto& [name, value] : given.named) {
    if (name == "attribute") {
      path_name = std::move(value);
    } else if (name == "default") {
      otherwise = std::move(value);
    } else {
      fail("map() got an unexpected keyword argument '{}'", name);
    }
  }
  const AttributePath path(heap, path_name);
  Iterator iterator(heap, self);
  while (const auto item = iterator.next()) mapped.push_back(path.get(*item, otherwise));
}

Value map(Heap& heap, BoundArguments& arguments) {
  const Value self = arguments.self();
  Arguments given = std::move(arguments.all());
  return Generator::make(heap, [&](std::vector<Value>& mapped) {
    if (!truth(heap, self)) return;
    const bool by_attribute =
        given.positional.empty() &&
        std::ranges::any_of(given.named, [](const auto& n) { return n.first == "attribute"; });
    if (by_attribute) return map_attribute(heap, self, given, mapped);
    if (given.positional.empty()) fail("map requires a filter argument");
    const std::string_view name = name_of(given.positional[0], "filter");
    const Native* filter = find_filter(name);
    if (filter == nullptr) fail("there is no filter named '{}'", name);
    const Arguments rest{{given.positional.begin() + 1, given.positional.end()}, given.named};
    Iterator iterator(heap, self);
    while (const auto item = iterator.next()) {
      mapped.push_back(call_native(heap, *filter, *item, rest));
    }
  });
}

Value choose(Heap& heap, BoundArguments& arguments, bool wanted, bool by_attribute) {
  const Value self = arguments.self();
  Arguments given = std::move(arguments.all());
  return Generator::make(heap, [&](std::vector<Value>& chosen) {
    if (!truth(heap, self)) return;
    size_t used = 0;
    if (by_attribute && given.positional.empty()) fail("missing parameter for attribute name");
    const AttributePath path(heap, by_attribute ? given.positional[used++] : Value());
    const Native* test = nullptr;
    if (given.positional.size() > used) {
      const std::string_view name = name_of(given.positional[used++], "test");
      test = find_test(name);
      if (test == nullptr) fail("there is no test named '{}'", name);
    }
    const auto first = given.positional.begin() + static_cast<std::ptrdiff_t>(used);
    const Arguments rest{{first, given.positional.end()}, given.named};
    Iterator iterator(heap, self);
    while (auto item = iterator.next()) {
      const Value value = path.get(*item);
      const Value verdict = test == nullptr ? value : call_native(heap, *test, value, rest);
      if (truth(heap, verdict) == wanted) chosen.push_back(std::move(*item));
    }
  });
}

Value select(Heap& heap, BoundArguments& arguments) {
  return choose(heap, arguments, true, false);
}
Value reject(Heap& heap, BoundArguments& arguments) {
  return choose(heap, arguments, false, false);
}
Value select_attribute(Heap& heap, BoundArguments& arguments) {
  return choose(heap, arguments, true, true);
}
Value reject_attribute(Heap& heap, BoundArguments& arguments) {
  return choose(heap, arguments, false, true);
}

constexpr Native kFilters[] = {
    {"map", map, Native::kAnyNumber},
    {"reject", reject, Native::kAnyNumber},
    {"rejectattr", reject_attribute, Native::kAnyNumber},
    {"select", select, Native::kAnyNumber},
    {"selectattr", select_attribute, Native::kAnyNumber},
};

}  // namespace

std::span<const Native> selection_filters() {
  return kFilters;
}

const Native* find_filter(std::string_view name) {
  for (const std::span<const Native> table :
       {text_filters(), number_filters(), sequence_filters(), selection_filters()}) {
    const auto found = std::ranges::find(table, name, &Native::name);
    if (found != table.end()) return &*found;
  }
  return nullptr;
}

}  // namespace lockstep::jinja
