// The endpoints for Anthropic's clients, and their errors.
#pragma once

#include <string_view>

#include "engine/base/json.h"
#include "server/api/common/api_error.h"
#include "server/api/common/call.h"
#include "server/api/common/chat_request.h"

namespace lockstep {

ApiResult<void> post_messages(Call& call);
ApiResult<void> post_count_tokens(Call& call);

// The body of POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients send it.
// `counts_only`: of count_tokens, which generates nothing and needs no max_tokens. What the context
// cannot hold of max_tokens is cut off, as Anthropic's API does.
ApiResult<ChatRequest> parse_messages(const Json& body, const RequestLimits& limits,
                                      bool counts_only);

struct AnthropicErrorType {
  int status;
  std::string_view type;
};

// Anthropic's names.
inline constexpr AnthropicErrorType kAnthropicErrorTypes[] = {
    {400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
    {404, "not_found_error"},       {413, "request_too_large"},    {429, "rate_limit_error"},
    {503, "overloaded_error"},      {504, "timeout_error"}};

inline std::string_view anthropic_error_type(int status) {
  for (const AnthropicErrorType& row : kAnthropicErrorTypes) {
    if (row.status == status) return row.type;
  }
  return status < 500 ? "invalid_request_error" : "api_error";
}

// An error in Anthropic's words: {"type":"error","error":{"type","message"}}.
inline Json anthropic_error_object(const ApiError& error) {
  return {{"type", "error"},
          {"error", {{"type", anthropic_error_type(error.status)}, {"message", error.message}}}};
}

}  // namespace lockstep
