#include <algorithm>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/text_operations.h"

namespace lockstep::jinja {

namespace {

using Convert = std::string (*)(std::string_view);

template <Convert convert>
Value converted(Heap& heap, BoundArguments& arguments) {
  const std::string& text = arguments.self().text();
  heap.step_bytes(text.size());
  heap.reserve(text.size() * 3);
  return like(heap, arguments.self(), convert(text));
}

// An argument of a method of markup is escaped before it gets in.
TracedText inserted(Heap& heap, const Value& self, const Value& argument) {
  const bool escapes = self.is_markup() && !argument.is_markup();
  return escapes ? escape_markup(heap, argument.traced()) : argument.traced();
}

template <Side side>
Value stripped(Heap& heap, BoundArguments& arguments) {
  const bool all_space = !arguments.has(0) || arguments.value(0).is_none();
  const auto characters =
      all_space ? std::nullopt : std::optional<std::string_view>(arguments.text(0));
  return part_of(heap, arguments.self(), strip(heap, arguments.self().text(), side, characters));
}

Value replace(Heap& heap, BoundArguments& arguments) {
  arguments.text(1);
  return like(
      heap, arguments.self(),
      replace_text(heap, arguments.self().traced(), arguments.text(0),
                   inserted(heap, arguments.self(), arguments.value(1)), arguments.integer(2, -1)));
}

Value join(Heap& heap, BoundArguments& arguments) {
  const Value& self = arguments.self();
  TextBuilder text(heap);
  bool is_first = true;
  Iterator iterator(heap, arguments.value(0));
  while (const auto item = iterator.next()) {
    if (!is_first) text.append(self.traced());
    is_first = false;
    if (self.is_markup() && !item->is_markup()) {
      text.append(escape_markup(heap, to_str(heap, *item)));
    } else if (item->is_string()) {
      append_str(heap, *item, text);
    } else {
      fail("join() needs strings, not {}", describe(*item));
    }
  }
  return like(heap, self, text.finish());
}

template <Side side>
Value padded(Heap& heap, BoundArguments& arguments) {
  TracedText fill(" ", false);
  if (arguments.has(1)) {
    if (character_count(arguments.text(1)) != 1) {
      fail("the fill character must be exactly one character long");
    }
    fill = inserted(heap, arguments.self(), arguments.value(1));
  }
  return like(heap, arguments.self(),
              pad_text(heap, arguments.self().traced(), arguments.integer(0, 0), side, fill));
}

Value zero_fill(Heap& heap, BoundArguments& arguments) {
  const std::string_view text = arguments.self().text();
  const size_t sign = text.starts_with('+') || text.starts_with('-') ? 1 : 0;
  const int64_t width = arguments.integer(0, 0);
  const int64_t rest = width > static_cast<int64_t>(sign) ? width - static_cast<int64_t>(sign) : 0;
  TracedText filled = traced_part(arguments.self(), text.substr(0, sign));
  filled.append(pad_text(heap, traced_part(arguments.self(), text.substr(sign)), rest, Side::kRight,
                         TracedText("0", false)));
  return like(heap, arguments.self(), std::move(filled));
}

Value remove_prefix(Heap& heap, BoundArguments& arguments) {
  std::string_view text = arguments.self().text();
  if (text.starts_with(arguments.text(0))) text.remove_prefix(arguments.text(0).size());
  return part_of(heap, arguments.self(), text);
}

Value remove_suffix(Heap& heap, BoundArguments& arguments) {
  std::string_view text = arguments.self().text();
  if (text.ends_with(arguments.text(0))) text.remove_suffix(arguments.text(0).size());
  return part_of(heap, arguments.self(), text);
}

Value format(Heap& heap, BoundArguments& arguments) {
  return format_braces(heap, arguments.self(), arguments.all());
}

Value format_map(Heap& heap, BoundArguments& arguments) {
  const DictData* dict = arguments.value(0).dict();
  if (dict == nullptr) fail("format_map() needs a mapping, not {}", describe(arguments.value(0)));
  Arguments named;
  for (const auto& [key, value] : dict->entries) {
    if (key.is_string()) named.named.emplace_back(key.text(), value);
  }
  return format_braces(heap, arguments.self(), named);
}

Value expand_tabs(Heap& heap, BoundArguments& arguments) {
  constexpr int64_t kUsual = 8;
  const int64_t tab = arguments.integer(0, kUsual);
  TextBuilder text(heap);
  int64_t column = 0;
  const bool foreign = arguments.self().traced().is_foreign();
  heap.step_bytes(arguments.self().text().size());
  for (std::string_view rest = arguments.self().text(); !rest.empty();) {
    const Character character = first_character(rest);
    if (character.code_point == '\t') {
      const int64_t spaces = tab > 0 ? tab - column % tab : 0;
      text.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    } else {
      text.append(rest.substr(0, character.bytes), foreign);
      const bool breaks = character.code_point == '\n' || character.code_point == '\r';
      column = breaks ? 0 : column + 1;
    }
    rest.remove_prefix(character.bytes);
  }
  return like(heap, arguments.self(), text.finish());
}

constexpr Native kMethods[] = {
    {"capitalize", converted<capitalize>},
    {"center", padded<Side::kBoth>, 1, {"width", "fillchar"}},
    {"expandtabs", expand_tabs, 0, {"tabsize"}},
    {"format", format, Native::kAnyNumber},
    {"format_map", format_map, 1, {"mapping"}},
    {"join", join, 1, {"iterable"}},
    {"ljust", padded<Side::kLeft>, 1, {"width", "fillchar"}},
    {"lower", converted<to_lower>},
    {"lstrip", stripped<Side::kLeft>, 0, {"chars"}},
    {"removeprefix", remove_prefix, 1, {"prefix"}},
    {"removesuffix", remove_suffix, 1, {"suffix"}},
    {"replace", replace, 2, {"old", "new", "count"}},
    {"rjust", padded<Side::kRight>, 1, {"width", "fillchar"}},
    {"rstrip", stripped<Side::kRight>, 0, {"chars"}},
    {"strip", stripped<Side::kBoth>, 0, {"chars"}},
    {"swapcase", converted<swap_case>},
    {"title", converted<to_title>},
    {"upper", converted<to_upper>},
    {"zfill", zero_fill, 1, {"width"}},
};

}  // namespace

std::span<const Native> string_methods() {
  return kMethods;
}

}  // namespace lockstep::jinja
