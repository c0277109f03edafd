#include "engine/text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/literals.h"

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
