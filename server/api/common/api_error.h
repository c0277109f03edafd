// The error that a request is refused with: its status, the members of OpenAI's error object, and
// when to come again.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::optional<std::string> parameter = {};  // the field of the request that was wrong
  std::optional<std::string> code = {};
  std::optional<int> retry_after_seconds = {};
};

template <typename T>
using ApiResult = std::expected<T, ApiError>;

// 400, about the whole request or one parameter of it.
ApiError bad_request(std::string message);
ApiError bad_parameter(std::string_view parameter, std::string message);

// 503: "model_loading", "shutting_down" or "queue_full".
ApiError not_now(std::string_view code, std::string message, int retry_after_seconds);

// 504: "deadline_exceeded".
ApiError deadline_exceeded();

// 429.
ApiError rate_limited(std::string message, int retry_after_seconds);

// 500.
ApiError server_error(std::string message);

}  // namespace lockstep
