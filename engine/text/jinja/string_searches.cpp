// The methods of strings that look into them or take them apart.
#include <algorithm>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/text_operations.h"

namespace lockstep::jinja {

namespace {

constexpr size_t kNowhere = std::string_view::npos;

// The text between two optional indices of characters, and where it begins; nothing when the start
// lies behind the end.
struct Window {
  std::string_view text;
  size_t first_character = 0;
  bool valid = true;
};

Window window_of(Heap& heap, BoundArguments& arguments, size_t start_index) {
  const std::string_view text = arguments.self().text();
  heap.step_bytes(text.size());
  const auto count = static_cast<int64_t>(character_count(text));
  const auto bound = [&](size_t index, int64_t otherwise) {
    if (!arguments.has(index) || arguments.value(index).is_none()) return otherwise;
    const int64_t at = arguments.integer(index, otherwise);
    return at < 0 ? (at < -count ? 0 : at + count) : at;
  };
  const int64_t start = bound(start_index, 0);
  const int64_t end = std::min(bound(start_index + 1, count), count);
  if (start > end || start > count) return {{}, 0, false};
  const size_t begin = byte_offset(text, static_cast<size_t>(start));
  const size_t bytes = byte_offset(text.substr(begin), static_cast<size_t>(end - start));
  return {text.substr(begin, bytes), static_cast<size_t>(start), true};
}

template <bool from_end>
int64_t found_at(Heap& heap, BoundArguments& arguments) {
  const std::string_view needle = arguments.text(0);
  const Window window = window_of(heap, arguments, 1);
  if (!window.valid) return -1;
  const size_t at = from_end ? find_last_text(window.text, needle) : find_text(window.text, needle);
  if (at == kNowhere) return -1;
  return static_cast<int64_t>(window.first_character + character_count(window.text.substr(0, at)));
}

template <bool from_end>
Value find(Heap& heap, BoundArguments& arguments) {
  return Value(found_at<from_end>(heap, arguments));
}

template <bool from_end>
Value index(Heap& heap, BoundArguments& arguments) {
  const int64_t at = found_at<from_end>(heap, arguments);
  if (at < 0) fail("substring not found: '{}'", arguments.text(0));
  return Value(at);
}

Value count(Heap& heap, BoundArguments& arguments) {
  const std::string_view needle = arguments.text(0);
  const Window window = window_of(heap, arguments, 1);
  if (!window.valid) return Value(int64_t{0});
  if (needle.empty()) return Value::integer(character_count(window.text) + 1);
  int64_t found = 0;
  for (size_t at = find_text(window.text, needle); at != kNowhere;
       at = find_text(window.text, needle, at + needle.size())) {
    heap.step();
    ++found;
  }
  return Value(found);
}

template <bool at_end>
Value has_affix(Heap& heap, BoundArguments& arguments) {
  const Window window = window_of(heap, arguments, 1);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) {
      fail("{} arguments must be str or a tuple of str, not {}", at_end ? "endswith" : "startswith",
           describe(affix));
    }
    heap.step();
    return window.valid &&
           (at_end ? window.text.ends_with(affix.text()) : window.text.starts_with(affix.text()));
  };
  const Value& affix = arguments.value(0);
  if (!affix.is_tuple()) return Value(matches(affix));
  return Value(std::ranges::any_of(affix.sequence()->items, matches));
}

// How often at most; every piece costs a step.
uint64_t split_limit(const BoundArguments& arguments) {
  const int64_t limit = arguments.integer(1, -1);
  return limit < 0 ? UINT64_MAX : static_cast<uint64_t>(limit);
}

void split_at_space(Heap& heap, const Value& self, uint64_t limit, std::vector<Value>& parts) {
  std::string_view rest = strip_left(self.text());
  while (!rest.empty()) {
    heap.step();
    if (limit-- == 0) {
      parts.push_back(part_of(heap, self, rest));
      return;
    }
    size_t bytes = 0;
    while (bytes < rest.size()) {
      const Character character = first_character(rest.substr(bytes));
      if (is_space(character.code_point)) break;
      bytes += character.bytes;
    }
    parts.push_back(part_of(heap, self, rest.substr(0, bytes)));
    rest = strip_left(rest.substr(bytes));
  }
}

void split_at_space_from_end(Heap& heap, const Value& self, uint64_t limit,
                             std::vector<Value>& parts) {
  std::string_view rest = strip_right(self.text());
  while (!rest.empty()) {
    heap.step();
    if (limit-- == 0) {
      parts.push_back(part_of(heap, self, rest));
      break;
    }
    size_t begin = rest.size();
    while (begin > 0) {
      const Character character = last_character(rest.substr(0, begin));
      if (is_space(character.code_point)) break;
      begin -= character.bytes;
    }
    parts.push_back(part_of(heap, self, rest.substr(begin)));
    rest = strip_right(rest.substr(0, begin));
  }
  std::ranges::reverse(parts);
}

// The offsets of the separators, in order; from the end, where they would be found from there.
std::vector<size_t> separators_in(Heap& heap, std::string_view text, std::string_view separator,
                                  uint64_t limit, bool from_end) {
  std::vector<size_t> places;
  if (!from_end) {
    for (size_t at = find_text(text, separator); at != kNowhere && places.size() < limit;
         at = find_text(text, separator, at + separator.size())) {
      heap.step();
      places.push_back(at);
    }
    return places;
  }
  const std::string backwards(text.rbegin(), text.rend());
  const std::string reversed(separator.rbegin(), separator.rend());
  for (size_t at = find_text(backwards, reversed); at != kNowhere && places.size() < limit;
       at = find_text(backwards, reversed, at + reversed.size())) {
    heap.step();
    places.push_back(text.size() - at - separator.size());
  }
  std::ranges::reverse(places);
  return places;
}

template <bool from_end>
Value split(Heap& heap, BoundArguments& arguments) {
  const Value& self = arguments.self();
  heap.step_bytes(self.text().size());
  const uint64_t limit = split_limit(arguments);
  std::vector<Value> parts;
  if (!arguments.has(0) || arguments.value(0).is_none()) {
    if (from_end) {
      split_at_space_from_end(heap, self, limit, parts);
    } else {
      split_at_space(heap, self, limit, parts);
    }
    return make_list(heap, std::move(parts));
  }
  const std::string_view separator = arguments.text(0);
  if (separator.empty()) fail("empty separator");
  const std::string_view text = self.text();
  size_t begin = 0;
  for (const size_t at : separators_in(heap, text, separator, limit, from_end)) {
    parts.push_back(part_of(heap, self, text.substr(begin, at - begin)));
    begin = at + separator.size();
  }
  parts.push_back(part_of(heap, self, text.substr(begin)));
  return make_list(heap, std::move(parts));
}

Value lines(Heap& heap, BoundArguments& arguments) {
  std::vector<Value> parts;
  for (const auto line : split_lines(heap, arguments.self().text(), arguments.truth(0, false))) {
    parts.push_back(part_of(heap, arguments.self(), line));
  }
  return make_list(heap, std::move(parts));
}

template <bool from_end>
Value partition(Heap& heap, BoundArguments& arguments) {
  const Value& self = arguments.self();
  const std::string_view text = self.text();
  const std::string_view separator = arguments.text(0);
  if (separator.empty()) fail("empty separator");
  heap.step_bytes(text.size());
  const size_t at = from_end ? find_last_text(text, separator) : find_text(text, separator);
  std::vector<Value> parts;
  if (at == kNowhere) {
    parts = {part_of(heap, self, from_end ? "" : text), part_of(heap, self, ""),
             part_of(heap, self, from_end ? text : "")};
  } else {
    parts = {part_of(heap, self, text.substr(0, at)),
             part_of(heap, self, text.substr(at, separator.size())),
             part_of(heap, self, text.substr(at + separator.size()))};
  }
  return make_tuple(heap, std::move(parts));
}

using CharacterTest = bool (*)(uint32_t code_point);

// Whether there are characters and all of them pass.
template <CharacterTest test>
Value all_are(Heap& heap, BoundArguments& arguments) {
  std::string_view rest = arguments.self().text();
  heap.step_bytes(rest.size());
  if (rest.empty()) return Value(false);
  while (!rest.empty()) {
    const Character character = first_character(rest);
    if (!test(character.code_point)) return Value(false);
    rest.remove_prefix(character.bytes);
  }
  return Value(true);
}

bool is_ascii(uint32_t code_point) {
  return code_point < 0x80;
}

// Unlike the others, these two hold for an empty text.
template <CharacterTest test>
Value all_are_or_empty(Heap& heap, BoundArguments& arguments) {
  return arguments.self().text().empty() ? Value(true) : all_are<test>(heap, arguments);
}

template <CharacterTest wanted, CharacterTest other>
Value has_case(Heap& heap, BoundArguments& arguments) {
  bool found = false;
  std::string_view rest = arguments.self().text();
  heap.step_bytes(rest.size());
  while (!rest.empty()) {
    const Character character = first_character(rest);
    if (other(character.code_point) || is_title(character.code_point)) return Value(false);
    found = found || wanted(character.code_point);
    rest.remove_prefix(character.bytes);
  }
  return Value(found);
}

Value is_title_case(Heap& heap, BoundArguments& arguments) {
  bool found = false;
  bool inside = false;
  std::string_view rest = arguments.self().text();
  heap.step_bytes(rest.size());
  while (!rest.empty()) {
    const Character character = first_character(rest);
    const bool begins = is_upper(character.code_point) || is_title(character.code_point);
    const bool goes_on = is_lower(character.code_point);
    if ((begins && inside) || (goes_on && !inside)) return Value(false);
    inside = begins || goes_on;
    found = found || inside;
    rest.remove_prefix(character.bytes);
  }
  return Value(found);
}

constexpr Native kMethods[] = {
    {"count", count, 1, {"sub", "start", "end"}},
    {"endswith", has_affix<true>, 1, {"suffix", "start", "end"}},
    {"find", find<false>, 1, {"sub", "start", "end"}},
    {"index", index<false>, 1, {"sub", "start", "end"}},
    {"isalnum", all_are<is_alphanumeric>},
    {"isalpha", all_are<is_alphabetic>},
    {"isascii", all_are_or_empty<is_ascii>},
    {"isdecimal", all_are<is_decimal>},
    {"isdigit", all_are<is_digit>},
    {"islower", has_case<is_lower, is_upper>},
    {"isnumeric", all_are<is_numeric>},
    {"isprintable", all_are_or_empty<is_printable>},
    {"isspace", all_are<is_space>},
    {"istitle", is_title_case},
    {"isupper", has_case<is_upper, is_lower>},
    {"partition", partition<false>, 1, {"sep"}},
    {"rfind", find<true>, 1, {"sub", "start", "end"}},
    {"rindex", index<true>, 1, {"sub", "start", "end"}},
    {"rpartition", partition<true>, 1, {"sep"}},
    {"rsplit", split<true>, 0, {"sep", "maxsplit"}},
    {"split", split<false>, 0, {"sep", "maxsplit"}},
    {"splitlines", lines, 0, {"keepends"}},
    {"startswith", has_affix<false>, 1, {"prefix", "start", "end"}},
};

}  // namespace

std::span<const Native> string_searches() {
  return kMethods;
}

}  // namespace lockstep::jinja
