#include "server/api/api_error.h"

#include <utility>

namespace lockstep {
namespace {

struct StatusCode {
  int status;
  std::string_view code;
};

// Codes for what never reaches an endpoint.
constexpr StatusCode kStatusCodes[] = {
    {400, "bad_request"},
    {401, "invalid_api_key"},
    {404, "not_found"},
    {405, "method_not_allowed"},
    {408, "request_timeout"},
    {411, "length_required"},
    {413, "payload_too_large"},
    {414, "uri_too_long"},
    {415, "unsupported_media_type"},
    {417, "expectation_failed"},
    {429, "rate_limit_exceeded"},
    {431, "headers_too_large"},
    {500, "internal_error"},
    {501, "not_implemented"},
    {503, "overloaded"},
    {505, "http_version_not_supported"},
};

Json text_or_null(const std::optional<std::string>& text) {
  return text ? Json(*text) : Json(nullptr);
}

}  // namespace

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

Json error_object(const ApiError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", text_or_null(error.parameter)},
            {"code", text_or_null(error.code)}}}};
}

void send_error(HttpResponse& response, const ApiError& error) {
  if (error.retry_after_seconds) {
    response.set_header("Retry-After", std::to_string(*error.retry_after_seconds));
  }
  response.send(error.status, "application/json", to_text(error_object(error)));
}

std::string http_error_body(int status, std::string_view message) {
  ApiError error{.status = status, .message = std::string(message)};
  if (status >= 500) error.type = "server_error";
  if (status == 401) error.type = "authentication_error";
  if (status == 429) error.type = "rate_limit_error";
  for (const StatusCode& row : kStatusCodes) {
    if (row.status == status) error.code = std::string(row.code);
  }
  return to_text(error_object(error));
}

}  // namespace lockstep
