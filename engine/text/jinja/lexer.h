// Cuts a template into tokens as Jinja2's lexer does, with trim_blocks and lstrip_blocks on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/failure.h"

namespace lockstep::jinja {

enum class TokenKind {
  kText,           // between the tags
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,  // of the template
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  uint32_t line = 1;
  std::string text;  // a string's own text, its escapes resolved; an operator as written
  int64_t integer = 0;
  double number = 0;

  bool is_operator(std::string_view operation) const {
    return kind == TokenKind::kOperator && text == operation;
  }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

// The last token is kEnd. Throws a Failure with the line. The source is valid UTF-8.
std::vector<Token> tokenize(std::string_view source);

}  // namespace lockstep::jinja
