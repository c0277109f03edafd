#include <algorithm>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/json.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/text_operations.h"

namespace lockstep::jinja {

namespace {

using Convert = std::string (*)(std::string_view);

template <Convert convert>
Value converted(Heap& heap, BoundArguments& arguments) {
  const Value self = soft_string(heap, arguments.self());
  heap.step_bytes(self.text().size());
  heap.reserve(self.text().size() * 3);
  return like(heap, self, convert(self.text()));
}

// As do_title of Jinja2: what follows white space or - ( { [ < begins a word.
Value title(Heap& heap, BoundArguments& arguments) {
  const Value self = soft_string(heap, arguments.self());
  std::string_view rest = self.text();
  heap.step_bytes(rest.size());
  heap.reserve(rest.size() * 3);
  std::string result;
  const auto separates = [](uint32_t code_point) {
    constexpr std::string_view kMarks = "-({[<";
    return is_space(code_point) ||
           (code_point < 0x80 && kMarks.find(static_cast<char>(code_point)) != kMarks.npos);
  };
  while (!rest.empty()) {
    size_t bytes = 0;
    const bool mark = separates(first_character(rest).code_point);
    while (bytes < rest.size()) {
      const Character character = first_character(rest.substr(bytes));
      if (separates(character.code_point) != mark) break;
      bytes += character.bytes;
    }
    const size_t first = first_character(rest).bytes;
    result += to_upper(rest.substr(0, first));
    result += to_lower(rest.substr(first, bytes - first));
    rest.remove_prefix(bytes);
  }
  return make_string(heap, TracedText(std::move(result), self.traced().is_foreign()));
}

Value center(Heap& heap, BoundArguments& arguments) {
  constexpr int64_t kUsual = 80;
  const Value self = soft_string(heap, arguments.self());
  return like(heap, self,
              pad_text(heap, self.traced(), arguments.integer(0, kUsual), Side::kBoth,
                       TracedText(" ", false)));
}

Value trim(Heap& heap, BoundArguments& arguments) {
  const Value self = soft_string(heap, arguments.self());
  const bool all_space = !arguments.has(0) || arguments.value(0).is_none();
  const auto characters =
      all_space ? std::nullopt : std::optional<std::string_view>(arguments.text(0));
  return part_of(heap, self, strip(heap, self.text(), Side::kBoth, characters));
}

Value replace(Heap& heap, BoundArguments& arguments) {
  const bool all = !arguments.has(2) || arguments.value(2).is_none();
  return make_string(
      heap,
      replace_text(heap, to_str(heap, arguments.self()), to_str(heap, arguments.value(0)).text,
                   to_str(heap, arguments.value(1)), all ? -1 : arguments.integer(2, -1)));
}

Value format(Heap& heap, BoundArguments& arguments) {
  const Value pattern = soft_string(heap, arguments.self());
  Arguments& given = arguments.all();
  if (given.named.empty()) {
    return format_percent(heap, pattern, make_tuple(heap, std::move(given.positional)));
  }
  if (!given.positional.empty()) {
    fail("format cannot handle positional and keyword arguments at the same time");
  }
  std::vector<DictData::Entry> entries;
  for (auto& [name, value] : given.named) {
    entries.emplace_back(make_foreign_string(heap, name), std::move(value));
  }
  return format_percent(heap, pattern, make_dict(heap, std::move(entries)));
}

Value indent(Heap& heap, BoundArguments& arguments) {
  const Value& self = arguments.self();
  require_defined(self);
  if (!self.is_string()) fail("indent needs a string, not {}", describe(self));
  constexpr int64_t kUsual = 4;
  TracedText indentation;
  if (arguments.has(0) && arguments.value(0).is_string()) {
    indentation = arguments.value(0).traced();
  } else {
    const auto width = static_cast<uint64_t>(std::max<int64_t>(0, arguments.integer(0, kUsual)));
    heap.reserve(width);
    indentation.text.assign(width, ' ');
  }
  const bool first = arguments.truth(1, false);
  const bool blank = arguments.truth(2, false);
  const std::string text = self.text() + "\n";
  TextBuilder result(heap);
  bool is_first = true;
  for (const std::string_view line : split_lines(heap, text, false)) {
    if (!is_first) result.append("\n");
    if (is_first ? first : (blank || !line.empty())) result.append(indentation);
    result.append(self.traced(), static_cast<size_t>(line.data() - text.data()), line.size());
    is_first = false;
  }
  return like(heap, self, result.finish());
}

Value truncate(Heap& heap, BoundArguments& arguments) {
  constexpr int64_t kLength = 255;
  constexpr int64_t kLeeway = 5;
  const Value& self = arguments.self();
  const int64_t most = arguments.integer(0, kLength);
  const std::string_view end = arguments.text(2, "...");
  const bool has_leeway = arguments.has(3) && !arguments.value(3).is_none();
  const int64_t leeway = has_leeway ? arguments.integer(3, 0) : kLeeway;
  const auto end_size = static_cast<int64_t>(character_count(end));
  if (most < end_size) fail("expected length >= {}, got {}", end_size, most);
  if (leeway < 0) fail("expected leeway >= 0, got {}", leeway);
  const auto count = length(heap, self);
  if (!count) fail("object of type '{}' has no len()", type_name(self));
  int64_t allowed = 0;
  if (__builtin_add_overflow(most, leeway, &allowed) || *count <= static_cast<uint64_t>(allowed)) {
    return self;
  }
  if (!self.is_string()) fail("truncate needs a string, not {}", describe(self));
  const std::string_view text = self.text();
  std::string_view kept = text.substr(0, byte_offset(text, static_cast<size_t>(most - end_size)));
  if (!arguments.truth(1, false)) kept = kept.substr(0, kept.rfind(' '));
  TracedText shortened = traced_part(self, kept);
  shortened.append(end, arguments.has(2) && arguments.value(2).traced().is_foreign());
  return like(heap, self, std::move(shortened));
}

Value word_count(Heap& heap, BoundArguments& arguments) {
  const Value self = soft_string(heap, arguments.self());
  heap.step_bytes(self.text().size());
  int64_t count = 0;
  bool inside = false;
  for (std::string_view rest = self.text(); !rest.empty();) {
    const Character character = first_character(rest);
    const bool word = character.code_point == '_' || is_alphanumeric(character.code_point);
    if (word && !inside) ++count;
    inside = word;
    rest.remove_prefix(character.bytes);
  }
  return Value(count);
}

Value as_string(Heap& heap, BoundArguments& arguments) {
  if (arguments.self().is_string()) return arguments.self();
  return make_string(heap, to_str(heap, arguments.self()));
}

Value escape(Heap& heap, BoundArguments& arguments) {
  if (arguments.self().is_markup()) return arguments.self();
  return make_string(heap, escape_markup(heap, to_str(heap, arguments.self())), true);
}

Value force_escape(Heap& heap, BoundArguments& arguments) {
  return make_string(heap, escape_markup(heap, to_str(heap, arguments.self())), true);
}

Value safe(Heap& heap, BoundArguments& arguments) {
  return make_string(heap, to_str(heap, arguments.self()), true);
}

TracedText quote_url(Heap& heap, const Value& value, bool query) {
  const TracedText text = to_str(heap, value);
  heap.step_bytes(text.text.size());
  TextBuilder quoted(heap);
  for (const char character : text.text) {
    const auto byte = static_cast<unsigned char>(character);
    constexpr std::string_view kKept = "_.-~";
    if (byte < 0x80 && (std::isalnum(byte) != 0 || kKept.find(character) != kKept.npos ||
                        (character == '/' && !query))) {
      quoted.append(1, character);
    } else if (character == ' ' && query) {
      quoted.append("+");
    } else {
      quoted.append(fmt::format("%{:02X}", byte));
    }
  }
  if (text.is_foreign()) quoted.mark_foreign(0);
  return quoted.finish();
}

Value url_encode(Heap& heap, BoundArguments& arguments) {
  const Value& self = arguments.self();
  if (self.is_string() || !is_iterable(self)) {
    return make_string(heap, quote_url(heap, self, false));
  }
  TextBuilder text(heap);
  const auto append = [&](const Value& key, const Value& value) {
    if (text.size() > 0) text.append("&");
    text.append(quote_url(heap, key, true));
    text.append("=");
    text.append(quote_url(heap, value, true));
  };
  if (const DictData* dict = self.dict()) {
    for (const auto& [key, value] : dict->entries) append(key, value);
  } else {
    Iterator iterator(heap, self);
    while (const auto item = iterator.next()) {
      const std::vector<Value> pair = items_of(heap, *item);
      if (pair.size() != 2) fail("urlencode needs pairs, one has {} items", pair.size());
      append(pair[0], pair[1]);
    }
  }
  return make_string(heap, text.finish());
}

Value xml_attributes(Heap& heap, BoundArguments& arguments) {
  require_defined(arguments.self());
  const DictData* dict = arguments.self().dict();
  if (dict == nullptr) fail("xmlattr needs a mapping, not {}", describe(arguments.self()));
  TextBuilder text(heap);
  for (const auto& [key, value] : dict->entries) {
    if (value.is_none() || value.is_undefined()) continue;
    if (!key.is_string() || key.text().find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      fail("invalid character in attribute name: {}", to_repr(heap, key).text);
    }
    if (text.size() > 0 || arguments.truth(0, true)) text.append(" ");
    const auto escaped = [&](const Value& part) {
      return part.is_markup() ? part.traced() : escape_markup(heap, to_str(heap, part));
    };
    text.append(escaped(key));
    text.append("=\"");
    text.append(escaped(value));
    text.append("\"");
  }
  return make_string(heap, text.finish());
}

// json.dumps with the arguments that transformers lets templates give.
Value to_json_filter(Heap& heap, BoundArguments& arguments) {
  JsonStyle style;
  style.ensure_ascii = arguments.truth(0, false);
  if (arguments.has(1) && !arguments.value(1).is_none()) {
    style.pretty = true;
    style.item_separator.assign(1, ',');
    if (arguments.value(1).is_string()) {
      style.indent = arguments.value(1).text();
    } else {
      const auto width = static_cast<uint64_t>(std::max<int64_t>(0, arguments.integer(1, 0)));
      heap.reserve(width);
      style.indent.assign(width, ' ');
    }
  }
  if (arguments.has(2) && !arguments.value(2).is_none()) {
    const std::vector<Value> separators = items_of(heap, arguments.value(2));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      fail("separators must be two strings, for items and for keys");
    }
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  style.sort_keys = arguments.truth(3, false);
  return make_string(heap, to_json(heap, arguments.self(), style));
}

constexpr Native kFilters[] = {
    {"capitalize", converted<capitalize>},
    {"center", center, 0, {"width"}},
    {"e", escape},
    {"escape", escape},
    {"forceescape", force_escape},
    {"format", format, Native::kAnyNumber},
    {"indent", indent, 0, {"width", "first", "blank"}},
    {"lower", converted<to_lower>},
    {"replace", replace, 2, {"old", "new", "count"}},
    {"safe", safe},
    {"string", as_string},
    {"title", title},
    {"tojson", to_json_filter, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", trim, 0, {"chars"}},
    {"truncate", truncate, 0, {"length", "killwords", "end", "leeway"}},
    {"upper", converted<to_upper>},
    {"urlencode", url_encode},
    {"wordcount", word_count},
    {"xmlattr", xml_attributes, 0, {"autospace"}},
};

}  // namespace

std::span<const Native> text_filters() {
  return kFilters;
}

}  // namespace lockstep::jinja
