#include "engine/text/jinja/token_stream.h"

#include <fmt/format.h>

namespace lockstep::jinja {

bool TokenStream::skip_operator(std::string_view operation) {
  if (!at_operator(operation)) return false;
  next();
  return true;
}

bool TokenStream::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  next();
  return true;
}

void TokenStream::expect_operator(std::string_view operation) {
  if (!skip_operator(operation)) fail_expected(operation);
}

void TokenStream::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(name);
}

const Token& TokenStream::expect(TokenKind kind, std::string_view description) {
  if (!at(kind)) fail_expected(description);
  return next();
}

void TokenStream::fail_at(uint32_t line, std::string message) const {
  Failure failure{std::move(message)};
  failure.line = line;
  throw failure;
}

void TokenStream::fail_expected(std::string_view expected) const {
  fail_at(current().line, fmt::format("expected '{}', got {}", expected, describe_current()));
}

std::string TokenStream::describe_current() const {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::kText:
      return "text";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return "a number";
    case TokenKind::kName:
    case TokenKind::kOperator:
      return fmt::format("'{}'", token.text);
    case TokenKind::kEnd:
      return "the end of the template";
  }
  return "a token";
}

void TokenStream::fail_depth() const {
  Failure failure{
      fmt::format("the template nests deeper than the depth budget of {} allows", depth_limit_)};
  failure.line = current().line;
  failure.budget = true;
  throw failure;
}

}  // namespace lockstep::jinja
