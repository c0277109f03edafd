#include "tests/emulators/gpu/lexer.h"

#include <algorithm>
#include <charconv>

namespace lockstep::ptx {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '$' ||
         c == '%' || c == '.';
}

// Directives about the source's files and lines, which end with their own line.
bool is_line_directive(std::string_view text) {
  if (text[0] != '.') return false;
  const std::string_view word = text.substr(0, text.find_first_of(" \t"));
  return word == ".loc" || word == ".file";
}

}  // namespace

void Lexer::skip_blank() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      ++position_;
    } else if (text_.substr(position_, 2) == "//" || is_line_directive(text_.substr(position_))) {
      position_ = std::min(text_.find('\n', position_), text_.size());
    } else if (text_.substr(position_, 2) == "/*") {
      const size_t end = text_.find("*/", position_ + 2);
      position_ = end == std::string_view::npos ? text_.size() : end + 2;
    } else {
      return;
    }
  }
}

void Lexer::next() {
  skip_blank();
  now_ = {.offset = static_cast<uint32_t>(position_)};
  if (position_ == text_.size()) return;
  const size_t begin = position_;
  const char c = text_[begin];
  const bool negative = c == '-' && begin + 1 < text_.size() && is_digit(text_[begin + 1]);
  if (is_digit(c) || negative) return read_number();
  if (is_in_name(c)) {
    now_.kind = Token::Kind::kName;
    // Two colons are within a name (L1::no_allocate), one ends a label.
    while (position_ < text_.size()) {
      if (is_in_name(text_[position_])) {
        ++position_;
      } else if (text_.substr(position_, 2) == "::") {
        position_ += 2;
      } else {
        break;
      }
    }
  } else if (c == '"') {
    now_.kind = Token::Kind::kName;
    const size_t end = text_.find('"', begin + 1);
    position_ = end == std::string_view::npos ? text_.size() : end + 1;
  } else {
    now_.kind = Token::Kind::kMark;
    ++position_;
  }
  now_.text = text_.substr(begin, position_ - begin);
}

// 12, -3, 0x1F, 12U; 0f and 0d are the bits of a float and a double in hexadecimal digits. A
// version such as 9.0 is read as a name.
void Lexer::read_number() {
  const size_t begin = position_;
  const bool negative = text_[begin] == '-';
  position_ += negative ? 1 : 0;
  int base = 10;
  now_.kind = Token::Kind::kInteger;
  if (text_[position_] == '0' && position_ + 1 < text_.size()) {
    const char mark = text_[position_ + 1];
    if (mark == 'x' || mark == 'X') base = 16;
    if (mark == 'f' || mark == 'F') now_.kind = Token::Kind::kFloat32;
    if (mark == 'd' || mark == 'D') now_.kind = Token::Kind::kFloat64;
    if (now_.kind != Token::Kind::kInteger) base = 16;
    if (base == 16) position_ += 2;
  }
  const char* const end = text_.data() + text_.size();
  const auto read = std::from_chars(text_.data() + position_, end, now_.bits, base);
  position_ = static_cast<size_t>(read.ptr - text_.data());
  if (negative) now_.bits = 0 - now_.bits;
  if (position_ < text_.size() && text_[position_] == 'U') ++position_;
  if (position_ < text_.size() && is_in_name(text_[position_])) {
    now_.kind = Token::Kind::kName;
    while (position_ < text_.size() && is_in_name(text_[position_])) ++position_;
  }
  now_.text = text_.substr(begin, position_ - begin);
}

}  // namespace lockstep::ptx
