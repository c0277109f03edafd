#include "server/api/common/api_error.h"

#include <utility>

namespace lockstep {

ApiError bad_request(std::string message) {
  return ApiError{.message = std::move(message)};
}

ApiError bad_parameter(std::string_view parameter, std::string message) {
  return ApiError{.message = std::move(message), .parameter = std::string(parameter)};
}

ApiError not_now(std::string_view code, std::string message, int retry_after_seconds) {
  return ApiError{.status = 503,
                  .message = std::move(message),
                  .type = "server_error",
                  .code = std::string(code),
                  .retry_after_seconds = retry_after_seconds};
}

ApiError deadline_exceeded() {
  return ApiError{.status = 504,
                  .message = "The request was not done within its time",
                  .type = "timeout_error",
                  .code = "deadline_exceeded"};
}

ApiError rate_limited(std::string message, int retry_after_seconds) {
  return ApiError{.status = 429,
                  .message = std::move(message),
                  .type = "rate_limit_error",
                  .code = "rate_limit_exceeded",
                  .retry_after_seconds = retry_after_seconds};
}

ApiError server_error(std::string message) {
  return ApiError{.status = 500,
                  .message = std::move(message),
                  .type = "server_error",
                  .code = "internal_error"};
}

}  // namespace lockstep
