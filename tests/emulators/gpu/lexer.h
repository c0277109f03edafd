// The words of a PTX text, one after the other.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::ptx {

struct Token {
  enum class Kind : uint8_t { kEnd, kName, kInteger, kFloat32, kFloat64, kMark } kind = Kind::kEnd;
  std::string_view text{};  // of a mark, its one character
  uint64_t bits = 0;        // of a number
  uint32_t offset = 0;

  bool is(char mark) const { return kind == Kind::kMark && text[0] == mark; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { next(); }

  const Token& now() const { return now_; }
  Token take() {
    const Token token = now_;
    next();
    return token;
  }
  bool take(char mark) {
    if (!now_.is(mark)) return false;
    next();
    return true;
  }

 private:
  void next();
  void skip_blank();
  void read_number();

  std::string_view text_;
  size_t position_ = 0;
  Token now_;
};

}  // namespace lockstep::ptx
