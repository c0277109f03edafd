#include <algorithm>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/merge_sort.h"
#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/text_operations.h"

namespace lockstep::jinja {

namespace {

Value length_of(Heap& heap, BoundArguments& arguments) {
  const auto count = length(heap, arguments.self());
  if (!count) fail("object of type '{}' has no len()", type_name(arguments.self()));
  return Value::integer(*count);
}

Value first(Heap& heap, BoundArguments& arguments) {
  auto item = Iterator(heap, arguments.self()).next();
  return item ? *item : Value::undefined("no first item, sequence was empty");
}

bool is_reversible(const Value& value) {
  const Object* object = value.object();
  return is_iterable(value) &&
         (object == nullptr || object->iteration() == Object::Iteration::kIndexed);
}

Value last(Heap& heap, BoundArguments& arguments) {
  const Value& self = arguments.self();
  if (!is_reversible(self)) fail("'{}' object is not reversible", type_name(self));
  const uint64_t count = *length(heap, self);
  if (count == 0) return Value::undefined("no last item, sequence was empty");
  if (const ListData* list = self.sequence()) return list->items.back();
  if (const DictData* dict = self.dict()) return dict->entries.back().first;
  if (Object* object = self.object()) return object->item(count - 1);
  const std::string_view text = self.text();
  return make_string(heap,
                     traced_part(self, text.substr(text.size() - last_character(text).bytes)));
}

Value to_list(Heap& heap, BoundArguments& arguments) {
  return make_list(heap, items_of(heap, arguments.self()));
}

Value reverse(Heap& heap, BoundArguments& arguments) {
  const Value& self = arguments.self();
  if (self.is_string()) return get_slice(heap, self, {}, {}, Value(int64_t{-1}));
  std::vector<Value> items = items_of(heap, self);
  std::ranges::reverse(items);
  if (!is_reversible(self)) return make_list(heap, std::move(items));
  return Generator::make(heap, [&](std::vector<Value>& reversed) { reversed = std::move(items); });
}

Value join(Heap& heap, BoundArguments& arguments) {
  const AttributePath path(heap, arguments.value(1));
  const TracedText separator = arguments.has(0) ? to_str(heap, arguments.value(0)) : TracedText();
  TextBuilder text(heap);
  bool is_first = true;
  Iterator iterator(heap, arguments.self());
  while (const auto item = iterator.next()) {
    if (!is_first) text.append(separator);
    is_first = false;
    append_str(heap, path.get(*item), text);
  }
  return make_string(heap, text.finish());
}

Value default_value(Heap& heap, BoundArguments& arguments) {
  const Value& self = arguments.self();
  if (self.is_undefined() || (arguments.truth(1, false) && !truth(heap, self))) {
    return arguments.has(0) ? arguments.value(0) : make_own_string(heap, "");
  }
  return self;
}

Value items(Heap& heap, BoundArguments& arguments) {
  const Value self = arguments.self();
  return Generator::make(heap, [&](std::vector<Value>& pairs) {
    if (self.is_undefined()) return;
    if (self.dict() == nullptr) fail("can only get item pairs from a mapping");
    for (const auto& [key, value] : self.dict()->entries) {
      heap.step();
      pairs.push_back(make_tuple(heap, {key, value}));
    }
  });
}

// Sorts what goes with each key; equal keys keep their order, also in reverse.
struct Keyed {
  std::vector<Value> keys;
  Value value;
};

void sort_keyed(Heap& heap, std::vector<Keyed>& rows, bool reverse) {
  const auto before = [&](const Keyed& left, const Keyed& right) {
    for (size_t index = 0; index < left.keys.size(); ++index) {
      if (left.keys.size() == 1 || !equal(heap, left.keys[index], right.keys[index])) {
        return less(heap, left.keys[index], right.keys[index]);
      }
    }
    return false;
  };
  merge_sort(rows, [&](const Keyed& left, const Keyed& right) {
    return reverse ? before(right, left) : before(left, right);
  });
}

std::vector<Value> values_of(std::vector<Keyed> rows) {
  std::vector<Value> values;
  values.reserve(rows.size());
  for (Keyed& row : rows) values.push_back(std::move(row.value));
  return values;
}

Value sort(Heap& heap, BoundArguments& arguments) {
  std::vector<AttributePath> paths;
  if (arguments.value(2).is_string()) {
    std::string_view rest = arguments.value(2).text();
    for (bool more = true; more;) {
      const size_t comma = std::min(rest.find(','), rest.size());
      paths.emplace_back(heap, make_own_string(heap, std::string(rest.substr(0, comma))));
      more = comma < rest.size();
      if (more) rest.remove_prefix(comma + 1);
    }
  } else {
    paths.emplace_back(heap, arguments.value(2));
  }
  const bool case_sensitive = arguments.truth(1, false);
  std::vector<Keyed> rows;
  Iterator iterator(heap, arguments.self());
  while (auto item = iterator.next()) {
    // Compared as a list of keys: equal ones need no order of their own.
    std::vector<Value> keys;
    for (const auto& path : paths) {
      keys.push_back(sort_key(heap, path.get(*item), case_sensitive));
    }
    keys.emplace_back();
    rows.push_back({std::move(keys), std::move(*item)});
  }
  sort_keyed(heap, rows, arguments.truth(0, false));
  return make_list(heap, values_of(std::move(rows)));
}

Value dictionary_sort(Heap& heap, BoundArguments& arguments) {
  require_defined(arguments.self());
  const DictData* dict = arguments.self().dict();
  if (dict == nullptr) fail("dictsort needs a mapping, not {}", describe(arguments.self()));
  const std::string_view by = arguments.text(1, "key");
  if (by != "key" && by != "value") fail("you can only sort by either \"key\" or \"value\"");
  std::vector<Keyed> rows;
  for (const auto& [key, value] : dict->entries) {
    heap.step();
    Value compared = sort_key(heap, by == "key" ? key : value, arguments.truth(0, false));
    rows.push_back({{std::move(compared)}, make_tuple(heap, {key, value})});
  }
  sort_keyed(heap, rows, arguments.truth(2, false));
  return make_list(heap, values_of(std::move(rows)));
}

Value unique(Heap& heap, BoundArguments& arguments) {
  const AttributePath path(heap, arguments.value(1));
  const bool case_sensitive = arguments.truth(0, false);
  Iterator iterator(heap, arguments.self());
  return Generator::make(heap, [&](std::vector<Value>& kept) {
    std::vector<Value> seen;
    while (auto item = iterator.next()) {
      Value key = sort_key(heap, path.get(*item), case_sensitive);
      check_hashable(heap, key);
      if (std::ranges::any_of(seen, [&](const Value& other) { return equal(heap, key, other); })) {
        continue;
      }
      seen.push_back(std::move(key));
      kept.push_back(std::move(*item));
    }
  });
}

Value extreme(Heap& heap, BoundArguments& arguments, bool largest) {
  const AttributePath path(heap, arguments.value(1));
  const bool case_sensitive = arguments.truth(0, false);
  Iterator iterator(heap, arguments.self());
  auto best = iterator.next();
  if (!best) return Value::undefined("no aggregated item, sequence was empty");
  Value best_key = sort_key(heap, path.get(*best), case_sensitive);
  while (auto item = iterator.next()) {
    Value key = sort_key(heap, path.get(*item), case_sensitive);
    if (largest ? less(heap, best_key, key) : less(heap, key, best_key)) {
      best = std::move(item);
      best_key = std::move(key);
    }
  }
  return *best;
}

Value largest(Heap& heap, BoundArguments& arguments) {
  return extreme(heap, arguments, true);
}
Value smallest(Heap& heap, BoundArguments& arguments) {
  return extreme(heap, arguments, false);
}

Value sum(Heap& heap, BoundArguments& arguments) {
  const AttributePath path(heap, arguments.value(0));
  Value total = arguments.has(1) ? arguments.value(1) : Value(int64_t{0});
  if (total.is_string()) fail("sum() can't sum strings: use the join filter");
  Iterator iterator(heap, arguments.self());
  while (const auto item = iterator.next()) {
    total = arithmetic(heap, Operator::kAdd, total, path.get(*item));
  }
  return total;
}

Value group_by(Heap& heap, BoundArguments& arguments) {
  const AttributePath path(heap, arguments.value(0));
  const Value otherwise = arguments.value(1);
  const bool case_sensitive = arguments.truth(2, false);
  std::vector<Keyed> rows;
  Iterator iterator(heap, arguments.self());
  while (auto item = iterator.next()) {
    Value key = sort_key(heap, path.get(*item, otherwise), case_sensitive);
    rows.push_back({{std::move(key)}, std::move(*item)});
  }
  sort_keyed(heap, rows, false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin;
    std::vector<Value> members;
    while (end < rows.size() && equal(heap, rows[end].keys[0], rows[begin].keys[0])) {
      members.push_back(rows[end++].value);
    }
    if (end == begin) members.push_back(rows[end++].value);  // not a number: equals nothing
    const Value name = path.get(members.front(), otherwise);
    auto group = std::make_shared<ListData>(
        heap, std::vector<Value>{name, make_list(heap, std::move(members))}, true);
    group->group = true;
    groups.emplace_back(std::shared_ptr<const ListData>(std::move(group)));
    begin = end;
  }
  return make_list(heap, std::move(groups));
}

Value batch(Heap& heap, BoundArguments& arguments) {
  const int64_t size = arguments.integer(0, 0);
  const Value fill = arguments.value(1);
  Iterator iterator(heap, arguments.self());
  return Generator::make(heap, [&](std::vector<Value>& rows) {
    std::vector<Value> row;
    while (auto item = iterator.next()) {
      if (static_cast<int64_t>(row.size()) == size) {
        rows.push_back(make_list(heap, std::exchange(row, {})));
      }
      row.push_back(std::move(*item));
    }
    if (row.empty()) return;
    while (!fill.is_none() && static_cast<int64_t>(row.size()) < size) {
      heap.step();
      row.push_back(fill);
    }
    rows.push_back(make_list(heap, std::move(row)));
  });
}

Value slice(Heap& heap, BoundArguments& arguments) {
  const int64_t count = arguments.integer(0, 0);
  const Value fill = arguments.value(1);
  const Value self = arguments.self();
  return Generator::make(heap, [&](std::vector<Value>& slices) {
    const std::vector<Value> all = items_of(heap, self);
    if (count == 0) fail("slice needs a number of slices other than 0");
    if (count < 0) return;
    const auto divisor = static_cast<uint64_t>(count);
    const uint64_t with_extra = all.size() % divisor;
    auto begin = all.begin();
    for (uint64_t number = 0; number < divisor; ++number) {
      heap.step();
      const uint64_t size = all.size() / divisor + (number < with_extra ? 1 : 0);
      const auto end = begin + static_cast<std::ptrdiff_t>(size);
      std::vector<Value> members(begin, end);
      if (!fill.is_none() && number >= with_extra) members.push_back(fill);
      slices.push_back(make_list(heap, std::move(members)));
      begin = end;
    }
  });
}

Value attribute(Heap& heap, BoundArguments& arguments) {
  return get_own_attribute(heap, arguments.self(), arguments.text(0));
}

constexpr Native kFilters[] = {
    {"attr", attribute, 1, {"name"}},
    {"batch", batch, 1, {"linecount", "fill_with"}},
    {"count", length_of},
    {"d", default_value, 0, {"default_value", "boolean"}},
    {"default", default_value, 0, {"default_value", "boolean"}},
    {"dictsort", dictionary_sort, 0, {"case_sensitive", "by", "reverse"}},
    {"first", first},
    {"groupby", group_by, 1, {"attribute", "default", "case_sensitive"}},
    {"items", items},
    {"join", join, 0, {"d", "attribute"}},
    {"last", last},
    {"length", length_of},
    {"list", to_list},
    {"max", largest, 0, {"case_sensitive", "attribute"}},
    {"min", smallest, 0, {"case_sensitive", "attribute"}},
    {"reverse", reverse},
    {"slice", slice, 1, {"slices", "fill_with"}},
    {"sort", sort, 0, {"reverse", "case_sensitive", "attribute"}},
    {"sum", sum, 0, {"attribute", "start"}},
    {"unique", unique, 0, {"case_sensitive", "attribute"}},
};

}  // namespace

std::span<const Native> sequence_filters() {
  return kFilters;
}

}  // namespace lockstep::jinja
