#include <algorithm>
#include <charconv>
#include <optional>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/operations.h"

namespace lockstep::jinja {

namespace {

constexpr int64_t kSizeMost = 1'000'000'000;

// The specification after the colon: [[fill]align][sign][#][0][width][,_][.precision][type].
struct Specification {
  std::string fill = " ";
  bool foreign = false;  // what fills
  char align = 0;
  bool zeros = false;  // numbers are filled after their sign
  int64_t width = 0;
  int64_t precision = -1;
  NumberFormat number;
};

std::optional<int64_t> read_number(std::string_view& text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  int64_t number = 0;
  while (!text.empty() && text[0] >= '0' && text[0] <= '9') {
    number = std::min(kSizeMost, number * 10 + (text[0] - '0'));
    text.remove_prefix(1);
  }
  return number;
}

bool take(std::string_view& text, std::string_view choices, char& taken) {
  if (text.empty() || choices.find(text[0]) == std::string_view::npos) return false;
  taken = text[0];
  text.remove_prefix(1);
  return true;
}

Specification parse_specification(const TracedText& layout) {
  std::string_view text = layout.text;
  const std::string_view whole = text;
  Specification specification;
  specification.foreign = layout.is_foreign();
  if (!text.empty()) {
    const size_t bytes = first_character(text).bytes;
    constexpr std::string_view kAligns = "<>=^";
    if (text.size() > bytes && kAligns.find(text[bytes]) != std::string_view::npos) {
      specification.fill = text.substr(0, bytes);
      specification.align = text[bytes];
      text.remove_prefix(bytes + 1);
    } else {
      take(text, kAligns, specification.align);
    }
  }
  take(text, "+- ", specification.number.sign);
  char flag = 0;
  specification.number.alternate = take(text, "#", flag);
  if (text.starts_with('0') && specification.align == 0) {
    specification.fill.assign(1, '0');
    specification.zeros = true;
  }
  specification.width = read_number(text).value_or(0);
  take(text, ",_", specification.number.thousands);
  if (take(text, ".", flag)) {
    const auto precision = read_number(text);
    if (!precision) fail("format specifier '{}' is missing its precision", whole);
    specification.precision = *precision;
    specification.number.precision = static_cast<int>(*precision);
  }
  take(text, "bcdeEfFgGnosxX%", specification.number.type);
  if (!text.empty()) fail("invalid format specifier '{}'", whole);
  return specification;
}

class BraceFormatter {
 public:
  BraceFormatter(Heap& heap, const Value& pattern, const Arguments& arguments)
      : heap_(heap),
        foreign_(pattern.traced().is_foreign()),
        markup_(pattern.is_markup()),
        arguments_(arguments) {}

  void run(std::string_view pattern, TextBuilder& text, int nesting) {
    if (nesting > 2) fail("max string recursion exceeded in a format");
    heap_.step_bytes(pattern.size());
    while (!pattern.empty()) {
      const size_t brace = pattern.find_first_of("{}");
      text.append(pattern.substr(0, brace), foreign_);
      if (brace == std::string_view::npos) return;
      const char kind = pattern[brace];
      pattern.remove_prefix(brace + 1);
      if (!pattern.empty() && pattern[0] == kind) {
        text.append(std::string_view(&kind, 1), foreign_);
        pattern.remove_prefix(1);
      } else if (kind == '}') {
        fail("single '}}' encountered in format string");
      } else {
        const std::string_view field = take_field(pattern);
        append_field(field, text, nesting);
      }
    }
  }

 private:
  // Takes the text inside the braces; the pattern goes on after them.
  static std::string_view take_field(std::string_view& pattern) {
    int open = 1;
    for (size_t index = 0; index < pattern.size(); ++index) {
      if (pattern[index] == '{') ++open;
      if (pattern[index] == '}' && --open == 0) {
        const std::string_view field = pattern.substr(0, index);
        pattern.remove_prefix(index + 1);
        return field;
      }
    }
    fail("expected '}}' before end of string");
  }

  void append_field(std::string_view field, TextBuilder& text, int nesting) {
    heap_.step();
    const size_t end = std::min(field.find_first_of("!:"), field.size());
    const Value value = resolve(field.substr(0, end));
    std::string_view rest = field.substr(end);
    char conversion = 0;
    if (rest.starts_with('!')) {
      if (rest.size() < 2) fail("end of string while looking for conversion specifier");
      conversion = rest[1];
      rest.remove_prefix(2);
      if (!rest.empty() && rest[0] != ':') fail("expected ':' after conversion specifier");
    }
    TextBuilder specification(heap_);
    if (rest.starts_with(':')) run(rest.substr(1), specification, nesting + 1);
    const TracedText layout = specification.finish();
    if (conversion == 0) return append_value(value, layout, text);
    if (conversion != 's' && conversion != 'r' && conversion != 'a') {
      fail("unknown conversion specifier '{}'", conversion);
    }
    TracedText shown = conversion == 's' ? to_str(heap_, value) : to_repr(heap_, value);
    append_value(make_string(heap_, std::move(shown)), layout, text);
  }

  Value resolve(std::string_view name) {
    check_numbering(name);
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, end));
    std::string_view rest = name.substr(end);
    while (!rest.empty()) {
      if (rest[0] == '.') {
        rest.remove_prefix(1);
        const size_t stop = std::min(rest.find_first_of(".["), rest.size());
        if (stop == 0) fail("empty attribute in format string");
        value = get_attribute(heap_, value, rest.substr(0, stop));
        rest.remove_prefix(stop);
      } else if (rest[0] == '[') {
        const size_t stop = rest.find(']');
        if (stop == std::string_view::npos) fail("missing ']' in format string");
        std::string_view key = rest.substr(1, stop - 1);
        if (key.empty()) fail("empty attribute in format string");
        rest.remove_prefix(stop + 1);
        std::string_view digits = key;
        const auto index = read_number(digits);
        value = index && digits.empty()
                    ? get_item(heap_, value, Value(*index))
                    : get_item(heap_, value, make_own_string(heap_, std::string(key)));
      } else {
        fail("only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  // Fields are numbered either all by the pattern or all by their order.
  void check_numbering(std::string_view field) {
    std::string_view digits = field;
    const bool numbered = read_number(digits).has_value() && digits.empty();
    if ((field.empty() && numbered_) || (numbered && automatic_)) {
      fail("a format cannot mix automatic and manual field numbering");
    }
    automatic_ = automatic_ || field.empty();
    numbered_ = numbered_ || numbered;
    if (field.starts_with('.') || field.starts_with('[')) fail("a format's field has no name");
  }

  Value argument(std::string_view name) {
    std::string_view digits = name;
    auto index = name.empty() ? std::optional<int64_t>(next_++) : read_number(digits);
    if (!index || (!name.empty() && !digits.empty())) {
      for (const auto& [key, value] : arguments_.named) {
        if (key == name) return value;
      }
      fail("the format names '{}', which was not given", name);
    }
    if (static_cast<uint64_t>(*index) >= arguments_.positional.size()) {
      fail("replacement index {} out of range for positional args tuple", *index);
    }
    return arguments_.positional[static_cast<size_t>(*index)];
  }

  void append_value(const Value& value, const TracedText& layout, TextBuilder& text) {
    const std::string_view specification_text = layout.text;
    if (specification_text.empty() || value.is_string()) {
      TracedText shown = to_str(heap_, value);
      if (markup_ && !value.is_markup()) shown = escape_markup(heap_, shown);
      if (specification_text.empty()) return text.append(shown);
      return append_text(std::move(shown), parse_specification(layout), text);
    }
    const Specification specification = parse_specification(layout);
    const char type = specification.number.type;
    if (!value.is_number()) {
      require_defined(value);
      fail("unsupported format string passed to {}.__format__", type_name(value));
    }
    NumberFormat number = specification.number;
    if (type == 'n') number.type = 0;
    constexpr std::string_view kFloatTypes = "eEfFgG%";
    const bool as_float = value.is_float() || kFloatTypes.find(type) != std::string_view::npos;
    if (as_float && type != 0 && type != 'n' && kFloatTypes.find(type) == std::string_view::npos) {
      fail("unknown format code '{}' for object of type 'float'", type);
    }
    if (!as_float && (specification.precision >= 0 || type == 's' || type == 'c')) {
      fail("format specifier '{}' is not allowed for integers", specification_text);
    }
    append_number(as_float ? format_float(value.floating(), number)
                           : format_integer(value.integral(), number),
                  specification, text);
  }

  static void append_filled(const Specification& specification, size_t count, TextBuilder& text) {
    for (size_t index = 0; index < count; ++index) {
      text.append(specification.fill, specification.foreign);
    }
  }

  void append_number(const NumberText& number, const Specification& specification,
                     TextBuilder& text) {
    const size_t size = number.sign.size() + number.digits.size();
    const size_t padding = padding_for(specification, size);
    const char align = specification.align != 0 ? specification.align
                       : specification.zeros    ? '='
                                                : '>';
    const size_t before = align == '>' ? padding : align == '^' ? padding / 2 : 0;
    append_filled(specification, before, text);
    text.append(number.sign);
    if (align == '=') append_filled(specification, padding, text);
    text.append(number.digits);
    if (align == '<' || align == '^') append_filled(specification, padding - before, text);
  }

  void append_text(TracedText shown, const Specification& specification, TextBuilder& text) {
    if ((specification.number.type != 0 && specification.number.type != 's') ||
        specification.number.thousands != 0 || specification.align == '=') {
      fail("this format specifier is not allowed for strings");
    }
    if (specification.precision >= 0) {
      shown.truncate(byte_offset(shown.text, static_cast<size_t>(specification.precision)));
    }
    const size_t padding = padding_for(specification, character_count(shown.text));
    const char align = specification.align == 0 ? '<' : specification.align;
    const size_t before = align == '>' ? padding : align == '^' ? padding / 2 : 0;
    append_filled(specification, before, text);
    text.append(shown);
    append_filled(specification, padding - before, text);
  }

  size_t padding_for(const Specification& specification, size_t size) {
    const auto width = static_cast<size_t>(specification.width);
    const size_t padding = width > size ? width - size : 0;
    heap_.reserve(padding);
    heap_.step_bytes(padding);
    return padding;
  }

  Heap& heap_;
  bool foreign_;  // in any part of the pattern: then all that it writes is
  bool markup_;
  const Arguments& arguments_;
  int64_t next_ = 0;
  bool automatic_ = false;
  bool numbered_ = false;
};

}  // namespace

Value format_braces(Heap& heap, const Value& pattern, const Arguments& arguments) {
  TextBuilder text(heap);
  BraceFormatter(heap, pattern, arguments).run(pattern.text(), text, 1);
  return make_string(heap, text.finish(), pattern.is_markup());
}

}  // namespace lockstep::jinja
