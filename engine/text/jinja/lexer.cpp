#include "engine/text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "engine/text/jinja/characters.h"
#include "engine/text/utf8.h"

namespace lockstep::jinja {

namespace {

constexpr size_t kNowhere = std::string_view::npos;

// Line breaks as \n; one at the very end is dropped.
std::string normalize(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t index = 0; index < source.size(); ++index) {
    if (source[index] == '\r') {
      text += '\n';
      if (index + 1 < source.size() && source[index + 1] == '\n') ++index;
    } else {
      text += source[index];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// Literals of expressions: strings with Python's escapes, and numbers.

bool is_digit_of(char character, int base) {
  if (character >= '0' && character <= '9') return character - '0' < base;
  const char lower = static_cast<char>(character | 0x20);
  return base == 16 && lower >= 'a' && lower <= 'f';
}

// Digits that single underscores may separate; 0 when there is none at the beginning.
size_t digits_length(std::string_view text, int base) {
  size_t length = 0;
  while (length < text.size()) {
    if (is_digit_of(text[length], base)) {
      ++length;
    } else if (length > 0 && text[length] == '_' && length + 1 < text.size() &&
               is_digit_of(text[length + 1], base)) {
      length += 2;
    } else {
      break;
    }
  }
  return length;
}

std::string without_underscores(std::string_view digits) {
  std::string plain(digits);
  std::erase(plain, '_');
  return plain;
}

// \x41, \u0041 and \U00000041: so many hexadecimal digits after the letter.
uint32_t read_code_point(std::string_view& rest, size_t digits) {
  if (rest.size() < digits ||
      !std::ranges::all_of(rest.substr(0, digits), [](char c) { return is_digit_of(c, 16); })) {
    fail("a string ends in a truncated \\x, \\u or \\U escape");
  }
  uint32_t code_point = 0;
  std::from_chars(rest.data(), rest.data() + digits, code_point, 16);
  rest.remove_prefix(digits);
  if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
    fail("a string escapes U+{:04X}, which is no character", code_point);
  }
  return code_point;
}

uint32_t read_octal(std::string_view& rest) {
  uint32_t code_point = 0;
  for (int digit = 0; digit < 3 && !rest.empty() && is_digit_of(rest[0], 8); ++digit) {
    code_point = code_point * 8 + static_cast<uint32_t>(rest[0] - '0');
    rest.remove_prefix(1);
  }
  return code_point;
}

// After a backslash.
void append_escape(std::string_view& rest, std::string& text) {
  constexpr std::string_view kLetters = "\\'\"abfnrtv";
  constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
  if (rest.empty()) fail("a string ends in a lone backslash");
  const char letter = rest[0];
  if (is_digit_of(letter, 8)) return append_utf8(read_octal(rest), text);
  if (static_cast<unsigned char>(letter) >= 0x80) {
    // Python first writes such a character as an escape: what remains of it is its number.
    const Character character = first_character(rest);
    const uint32_t code_point = character.code_point;
    text += code_point <= 0xFF     ? fmt::format("\\x{:02x}", code_point)
            : code_point <= 0xFFFF ? fmt::format("\\u{:04x}", code_point)
                                   : fmt::format("\\U{:08x}", code_point);
    rest.remove_prefix(character.bytes);
    return;
  }
  rest.remove_prefix(1);
  if (letter == '\n') return;  // a line that goes on
  if (letter == 'x') return append_utf8(read_code_point(rest, 2), text);
  if (letter == 'u') return append_utf8(read_code_point(rest, 4), text);
  if (letter == 'U') return append_utf8(read_code_point(rest, 8), text);
  if (letter == 'N') fail("a string names a character by \\N, which is not supported");
  const size_t meaning = kLetters.find(letter);
  if (meaning != std::string_view::npos) {
    text += kMeanings[meaning];
  } else {
    text += '\\';
    text += letter;
  }
}

// Resolves the escapes of what stands between the quotes. Throws a Failure for a broken one.
std::string unescape(std::string_view quoted) {
  std::string text;
  text.reserve(quoted.size());
  while (!quoted.empty()) {
    const size_t backslash = std::min(quoted.find('\\'), quoted.size());
    text += quoted.substr(0, backslash);
    quoted.remove_prefix(backslash);
    if (quoted.empty()) break;
    quoted.remove_prefix(1);
    append_escape(quoted, text);
  }
  return text;
}

// The bytes of the float, or the integer, at the beginning of the text; 0 when there is none.
size_t float_length(std::string_view text) {
  const size_t whole = digits_length(text, 10);
  if (whole == 0) return 0;
  size_t length = whole;
  if (text.substr(length).starts_with('.')) {
    const size_t fraction = digits_length(text.substr(length + 1), 10);
    if (fraction > 0) length += 1 + fraction;
  }
  const bool has_fraction = length > whole;
  std::string_view rest = text.substr(length);
  if (!rest.empty() && (rest[0] == 'e' || rest[0] == 'E')) {
    size_t exponent = 1;
    if (rest.size() > 1 && (rest[1] == '+' || rest[1] == '-')) ++exponent;
    const size_t digits = digits_length(rest.substr(exponent), 10);
    if (digits > 0) return length + exponent + digits;
  }
  return has_fraction ? length : 0;
}

size_t integer_length(std::string_view text) {
  if (text.size() >= 2 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 0x20);
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (base != 0) {
      const size_t underscore = text.substr(2).starts_with('_') ? 1 : 0;
      const size_t digits = digits_length(text.substr(2 + underscore), base);
      if (digits > 0) return 2 + underscore + digits;
    }
  }
  size_t length = digits_length(text, 10);
  if (length > 1 && text[0] == '0') {
    // A leading zero is a number of its own.
    length = 1;
    while (length < text.size() &&
           (text[length] == '0' || (text.substr(length).starts_with("_0")))) {
      length += text[length] == '0' ? 1 : 2;
    }
  }
  return length;
}

double read_float(std::string_view digits) {
  const std::string plain = without_underscores(digits);
  double number = 0;
  const auto result = std::from_chars(plain.data(), plain.data() + plain.size(), number);
  if (result.ec == std::errc::result_out_of_range) return std::strtod(plain.c_str(), nullptr);
  return number;
}

int64_t read_integer(std::string_view digits) {
  std::string plain = without_underscores(digits);
  int base = 10;
  if (plain.size() > 2 && plain[0] == '0') {
    const char letter = static_cast<char>(plain[1] | 0x20);
    base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    if (base != 10) plain.erase(0, 2);
  }
  int64_t number = 0;
  const auto result = std::from_chars(plain.data(), plain.data() + plain.size(), number, base);
  if (result.ec != std::errc()) fail("the integer {} does not fit 64 bits", digits);
  return number;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    try {
      while (position_ < source_.size()) read_until_tag();
    } catch (Failure& failure) {
      failure.line = line_;
      throw;
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return source_.substr(position_); }

  Token& add(TokenKind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
    return tokens_.back();
  }

  // Goes on by so many bytes, counting lines.
  void advance(size_t bytes) {
    const std::string_view passed = source_.substr(position_, bytes);
    line_ += static_cast<uint32_t>(std::ranges::count(passed, '\n'));
    if (!passed.empty()) line_starting_ = passed.back() == '\n';
    position_ += passed.size();
  }

  // -%} and the like: how much of the text that follows the end of a tag goes with it.
  size_t trimmed_after(size_t end, char sign, bool block) const {
    if (sign == '-') return leading_space(source_.substr(end));
    return sign != '+' && block && source_.substr(end).starts_with('\n') ? 1 : 0;
  }

  static char sign_at(std::string_view text) {
    return !text.empty() && (text[0] == '-' || text[0] == '+') ? text[0] : '\0';
  }

  // The text before a tag, without the white space that the tag takes away.
  std::string_view stripped_before(std::string_view text, char sign, bool variable) const {
    if (sign == '-') return strip_right(text);
    if (sign == '+' || variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == kNowhere ? 0 : newline + 1;
    if (line_begin == 0 && !line_starting_) return text;
    return strip_left(text.substr(line_begin)).empty() ? text.substr(0, line_begin) : text;
  }

  // `shown` is what remains of the next `bytes` bytes.
  void add_text(std::string_view shown, size_t bytes) {
    if (!shown.empty()) add(TokenKind::kText, std::string(shown));
    advance(bytes);
  }

  void read_until_tag() {
    size_t start = position_;
    while (true) {
      start = source_.find('{', start);
      if (start == kNowhere || start + 1 >= source_.size()) {
        return add_text(rest(), rest().size());
      }
      const char kind = source_[start + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++start;
    }
    const std::string_view text = source_.substr(position_, start - position_);
    const char kind = source_[start + 1];
    const char sign = sign_at(source_.substr(start + 2));
    const size_t inside = start + 2 + (sign != '\0' ? 1 : 0);
    add_text(stripped_before(text, sign, kind == '{'), text.size());
    const size_t raw = kind == '%' ? raw_end(inside) : kNowhere;
    if (raw != kNowhere) {
      advance(raw - position_);
      return read_raw();
    }
    if (kind == '#') {
      advance(inside - position_);
      return read_comment();
    }
    add(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    advance(inside - position_);
    read_expression(kind == '%');
  }

  // After `{% raw %}`, of which the text inside begins here; nowhere when it is another tag.
  size_t raw_end(size_t inside) const {
    size_t at = inside + leading_space(source_.substr(inside));
    if (!source_.substr(at).starts_with("raw")) return kNowhere;
    at += 3;
    at += leading_space(source_.substr(at));
    if (source_.substr(at).starts_with("%}")) return at + 2;
    if (!source_.substr(at).starts_with("-%}")) return kNowhere;
    return at + 3 + leading_space(source_.substr(at + 3));
  }

  void read_raw() {
    for (size_t start = source_.find("{%", position_); start != kNowhere;
         start = source_.find("{%", start + 1)) {
      const char sign = sign_at(source_.substr(start + 2));
      size_t at = start + 2 + (sign != '\0' ? 1 : 0);
      at += leading_space(source_.substr(at));
      if (!source_.substr(at).starts_with("endraw")) continue;
      at += 6;
      at += leading_space(source_.substr(at));
      const char end_sign = sign_at(source_.substr(at));
      if (end_sign != '\0') ++at;
      if (!source_.substr(at).starts_with("%}")) continue;
      const std::string_view text = source_.substr(position_, start - position_);
      add_text(stripped_before(text, sign, false), text.size());
      at += 2;
      return advance(at + trimmed_after(at, end_sign, true) - position_);
    }
    if (position_ < source_.size()) fail("missing end of raw directive");
  }

  void read_comment() {
    const size_t end = source_.find("#}", position_);
    if (end == kNowhere) {
      if (position_ < source_.size()) fail("missing end of comment tag");
      return;
    }
    const char sign = end > position_ ? sign_at(source_.substr(end - 1)) : '\0';
    advance(end + 2 + trimmed_after(end + 2, sign, true) - position_);
  }

  // The end of the tag if it stands here.
  bool read_tag_end(bool block) {
    const std::string_view end = block ? "%}" : "}}";
    const char sign = sign_at(rest());
    if (sign == '+' && !block) return false;
    const size_t at = sign != '\0' ? 1 : 0;
    if (!rest().substr(at).starts_with(end)) return false;
    add(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
    const size_t after = position_ + at + 2;
    advance(after + trimmed_after(after, sign, block) - position_);
    return true;
  }

  void read_expression(bool block) {
    std::vector<char> open;
    while (position_ < source_.size()) {
      if (open.empty() && read_tag_end(block)) return;
      if (const size_t space = leading_space(rest()); space > 0) {
        advance(space);
      } else if (!read_number() && !read_name() && !read_string()) {
        read_operator(open);
      }
    }
  }

  bool read_number() {
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';
    if (const size_t bytes = after_dot ? 0 : float_length(rest()); bytes > 0) {
      const double number = read_float(rest().substr(0, bytes));
      add(TokenKind::kFloat, "").number = number;
      advance(bytes);
      return true;
    }
    const size_t bytes = integer_length(rest());
    if (bytes == 0) return false;
    const int64_t number = read_integer(rest().substr(0, bytes));
    add(TokenKind::kInteger, std::string(rest().substr(0, bytes))).integer = number;
    advance(bytes);
    return true;
  }

  bool read_name() {
    size_t bytes = 0;
    while (bytes < rest().size()) {
      const Character character = first_character(rest().substr(bytes));
      if (character.code_point != '_' && !is_alphanumeric(character.code_point)) break;
      bytes += character.bytes;
    }
    if (bytes == 0) return false;
    const std::string_view name = rest().substr(0, bytes);
    if (is_numeric(first_character(name).code_point)) fail("invalid character in identifier");
    add(TokenKind::kName, std::string(name));
    advance(bytes);
    return true;
  }

  bool read_string() {
    const char quote = rest()[0];
    if (quote != '\'' && quote != '"') return false;
    for (size_t end = 1; end < rest().size(); ++end) {
      if (rest()[end] == '\\') {
        ++end;
      } else if (rest()[end] == quote) {
        add(TokenKind::kString, unescape(rest().substr(1, end - 1)));
        advance(end + 1);
        return true;
      }
    }
    fail("a string that begins with {} has no end", quote);
  }

  void read_operator(std::vector<char>& open) {
    static constexpr std::array<std::string_view, 6> kPairs = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kSingles = "+-/*%~[](){}<>=.:|,;";
    size_t bytes = 0;
    if (std::ranges::find(kPairs, rest().substr(0, 2)) != kPairs.end()) {
      bytes = 2;
    } else if (kSingles.find(rest()[0]) != kNowhere) {
      bytes = 1;
    } else {
      fail("unexpected char '{}'", rest().substr(0, first_character(rest()).bytes));
    }
    const std::string_view operation = rest().substr(0, bytes);
    balance(operation[0], open);
    add(TokenKind::kOperator, std::string(operation));
    advance(bytes);
  }

  static void balance(char operation, std::vector<char>& open) {
    static constexpr std::string_view kOpening = "([{";
    static constexpr std::string_view kClosing = ")]}";
    if (const size_t kind = kOpening.find(operation); kind != kNowhere) {
      open.push_back(kClosing[kind]);
    } else if (kClosing.find(operation) != kNowhere) {
      if (open.empty()) fail("unexpected '{}'", operation);
      if (open.back() != operation) fail("unexpected '{}', expected '{}'", operation, open.back());
      open.pop_back();
    }
  }

  std::string_view source_;
  size_t position_ = 0;
  uint32_t line_ = 1;
  bool line_starting_ = true;  // what is next begins a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  const std::string text = normalize(source);
  return Lexer(text).run();
}

}  // namespace lockstep::jinja
