// The tokens of a template as its parsers take them, and how deep they are in it.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja/lexer.h"

namespace lockstep::jinja {

class TokenStream {
 public:
  TokenStream(std::vector<Token> tokens, uint32_t depth_limit)
      : tokens_(std::move(tokens)), depth_limit_(depth_limit) {}

  const Token& current() const { return tokens_[position_]; }
  const Token& look() const {
    return tokens_[position_ + 1 < tokens_.size() ? position_ + 1 : position_];
  }
  // The current token; the one after it becomes current. The last token stays.
  const Token& next() {
    const Token& token = tokens_[position_];
    if (position_ + 1 < tokens_.size()) ++position_;
    return token;
  }

  bool at(TokenKind kind) const { return current().kind == kind; }
  bool at_operator(std::string_view operation) const { return current().is_operator(operation); }
  bool at_name(std::string_view name) const { return current().is_name(name); }
  bool skip_operator(std::string_view operation);
  bool skip_name(std::string_view name);
  void expect_operator(std::string_view operation);
  void expect_name(std::string_view name);
  const Token& expect(TokenKind kind, std::string_view description);

  [[noreturn]] void fail_at(uint32_t line, std::string message) const;
  [[noreturn]] void fail_expected(std::string_view expected) const;
  // How an error speaks of the current token.
  std::string describe_current() const;

  uint32_t depth_limit() const { return depth_limit_; }
  [[noreturn]] void fail_depth() const;

  // One level deeper into the template while it lives.
  class Level {
   public:
    explicit Level(TokenStream& stream) : stream_(stream) {
      if (++stream_.depth_ > stream_.depth_limit_) stream_.fail_depth();
    }
    ~Level() { --stream_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    TokenStream& stream_;
  };

 private:
  std::vector<Token> tokens_;
  size_t position_ = 0;
  uint32_t depth_limit_;
  uint32_t depth_ = 0;
};

}  // namespace lockstep::jinja
