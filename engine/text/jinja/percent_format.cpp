#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/utf8.h"

namespace lockstep::jinja {

namespace {

// Widths and precisions stay within int.
constexpr int64_t kSizeMost = 1'000'000'000;

struct Conversion {
  bool left = false;
  bool zero = false;
  bool alternate = false;
  char sign = '-';
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

class PercentFormatter {
 public:
  PercentFormatter(Heap& heap, const Value& pattern, const Value& values)
      : heap_(heap),
        pattern_(pattern.text()),
        foreign_(pattern.traced().is_foreign()),
        markup_(pattern.is_markup()),
        values_(values),
        text_(heap) {}

  Value run() {
    heap_.step_bytes(pattern_.size());
    while (position_ < pattern_.size()) {
      const size_t mark = pattern_.find('%', position_);
      text_.append(pattern_.substr(position_, mark - position_), foreign_);
      if (mark == std::string_view::npos) break;
      position_ = mark + 1;
      convert();
    }
    const bool mapping = values_.dict() != nullptr || values_.is_list();
    const size_t count = values_.is_tuple() ? values_.sequence()->items.size() : 1;
    if (!mapping && used_ < count) fail("not all arguments converted during string formatting");
    return make_string(heap_, text_.finish(), markup_);
  }

 private:
  char take() {
    if (position_ >= pattern_.size()) fail("incomplete format: '{}'", pattern_);
    return pattern_[position_++];
  }

  Value next_value() {
    if (values_.is_tuple()) {
      const auto& items = values_.sequence()->items;
      if (used_ >= items.size()) fail("not enough arguments for format string");
      return items[used_++];
    }
    if (used_ > 0) fail("not enough arguments for format string");
    ++used_;
    return values_;
  }

  int64_t read_size() {
    int64_t size = 0;
    if (position_ < pattern_.size() && pattern_[position_] == '*') {
      ++position_;
      const Value value = next_value();
      if (!value.is_integral()) fail("* wants int, not {}", describe(value));
      size = value.integral();
    } else {
      while (position_ < pattern_.size() && pattern_[position_] >= '0' &&
             pattern_[position_] <= '9') {
        size = std::min(kSizeMost, size * 10 + (pattern_[position_++] - '0'));
      }
    }
    return std::clamp(size, -kSizeMost, kSizeMost);
  }

  std::optional<Value> read_key() {
    if (position_ >= pattern_.size() || pattern_[position_] != '(') return std::nullopt;
    int open = 1;
    const size_t begin = ++position_;
    while (open > 0) {
      const char character = take();
      open += character == '(' ? 1 : character == ')' ? -1 : 0;
    }
    const std::string_view key = pattern_.substr(begin, position_ - begin - 1);
    if (values_.dict() == nullptr) fail("format requires a mapping");
    const Value* value = values_.dict()->find(heap_, key);
    if (value == nullptr) fail("the format's key '{}' is not in the mapping", key);
    return *value;
  }

  void convert() {
    Conversion conversion;
    const std::optional<Value> keyed = read_key();
    for (bool flag = true; flag;) {
      const char character = take();
      switch (character) {
        case '-':
          conversion.left = true;
          break;
        case '+':
          conversion.sign = '+';
          break;
        case ' ':
          if (conversion.sign != '+') conversion.sign = ' ';
          break;
        case '#':
          conversion.alternate = true;
          break;
        case '0':
          conversion.zero = true;
          break;
        default:
          flag = false;
          --position_;
      }
    }
    conversion.width = read_size();
    if (conversion.width < 0) {
      conversion.left = true;
      conversion.width = -conversion.width;
    }
    if (position_ < pattern_.size() && pattern_[position_] == '.') {
      ++position_;
      conversion.precision = std::max<int64_t>(0, read_size());
    }
    conversion.type = take();
    while (conversion.type == 'h' || conversion.type == 'l' || conversion.type == 'L') {
      conversion.type = take();
    }
    if (conversion.type == '%') {
      text_.append("%", foreign_);
      return;
    }
    append(conversion, keyed ? *keyed : next_value());
  }

  void append(const Conversion& conversion, const Value& value) {
    switch (conversion.type) {
      case 's':
      case 'r':
      case 'a':
        return append_text(conversion,
                           conversion.type == 's' ? to_str(heap_, value) : to_repr(heap_, value),
                           value.is_markup());
      case 'c':
        return append_text(conversion, character_of(value), false);
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return append_integer(conversion, value);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        break;
      default:
        fail("unsupported format character '{}'", conversion.type);
    }
    require_defined(value);
    if (!value.is_number()) fail("must be a real number, not {}", type_name(value));
    append_number(conversion, format_float(value.floating(),
                                           {conversion.type, static_cast<int>(conversion.precision),
                                            conversion.sign, conversion.alternate, 0}));
  }

  TracedText character_of(const Value& value) {
    if (value.is_integral()) {
      const int64_t code = value.integral();
      if (code < 0 || code > 0x10FFFF) fail("%c arg not in range(0x110000)");
      std::string text;
      append_utf8(static_cast<uint32_t>(code), text);
      return {std::move(text), true};  // a number may come from a request
    }
    if (value.is_string() && character_count(value.text()) == 1) return value.traced();
    fail("%c requires an int or a single character, not {}", describe(value));
  }

  void append_integer(const Conversion& conversion, const Value& value) {
    require_defined(value);
    const bool decimal = conversion.type == 'd' || conversion.type == 'i' || conversion.type == 'u';
    int64_t number = 0;
    if (value.is_integral()) {
      number = value.integral();
    } else if (value.is_float() && decimal) {
      constexpr double kLimit = 9.2e18;
      if (!(std::abs(value.floating()) < kLimit))
        fail("cannot convert {} to an integer", value.floating());
      number = static_cast<int64_t>(value.floating());
    } else {
      fail("%{} format: a number is required, not {}", conversion.type, type_name(value));
    }
    NumberText text = format_integer(
        number, {decimal ? 'd' : conversion.type, -1, conversion.sign, conversion.alternate, 0});
    if (conversion.precision > static_cast<int64_t>(text.digits.size())) {
      const auto zeros = static_cast<size_t>(conversion.precision) - text.digits.size();
      heap_.reserve(zeros);
      text.digits.insert(0, zeros, '0');
    }
    append_number(conversion, text);
  }

  void append_number(const Conversion& conversion, const NumberText& number) {
    const size_t size = number.sign.size() + number.digits.size();
    const auto width = static_cast<size_t>(conversion.width);
    const size_t padding = width > size ? width - size : 0;
    if (!conversion.left && !conversion.zero) text_.append(padding, ' ');
    text_.append(number.sign);
    if (!conversion.left && conversion.zero) text_.append(padding, '0');
    text_.append(number.digits);
    if (conversion.left) text_.append(padding, ' ');
  }

  void append_text(const Conversion& conversion, TracedText shown, bool safe) {
    if (markup_ && !safe) shown = escape_markup(heap_, shown);
    if (conversion.precision >= 0) {
      shown.truncate(byte_offset(shown.text, static_cast<size_t>(conversion.precision)));
    }
    const size_t count = character_count(shown.text);
    const auto width = static_cast<size_t>(conversion.width);
    const size_t padding = width > count ? width - count : 0;
    if (!conversion.left) text_.append(padding, ' ');
    text_.append(shown);
    if (conversion.left) text_.append(padding, ' ');
  }

  Heap& heap_;
  std::string_view pattern_;
  bool foreign_;  // in any part of the pattern: then all that it writes is
  bool markup_;
  const Value& values_;
  TextBuilder text_;
  size_t position_ = 0;
  size_t used_ = 0;
};

}  // namespace

Value format_percent(Heap& heap, const Value& pattern, const Value& values) {
  return PercentFormatter(heap, pattern, values).run();
}

}  // namespace lockstep::jinja
