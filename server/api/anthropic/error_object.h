// An error in Anthropic's words.
#pragma once

#include <string_view>

#include "engine/base/json.h"
#include "server/api/common/api_error.h"

namespace lockstep {

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

// {"type":"error","error":{"type","message"}}.
inline Json anthropic_error_object(const ApiError& error) {
  return {{"type", "error"},
          {"error", {{"type", anthropic_error_type(error.status)}, {"message", error.message}}}};
}

}  // namespace lockstep
