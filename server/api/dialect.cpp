#include "server/api/dialect.h"

#include <utility>

#include "server/api/anthropic/error_object.h"
#include "server/api/openai/error_object.h"

namespace lockstep {
namespace {

constexpr std::string_view kMessages = "/v1/messages";

struct StatusCode {
  int status;
  std::string_view code;
};

// Codes for what never reaches an endpoint.
constexpr StatusCode kStatusCodes[] = {
    {400, "bad_request"},
    {401, "invalid_api_key"},
    {403, "host_not_allowed"},
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

bool is_anthropics(std::string_view path) {
  if (!path.starts_with(kMessages)) return false;
  path.remove_prefix(kMessages.size());
  return path.empty() || path.front() == '/';
}

}  // namespace

ErrorObject error_object_of(std::string_view path) {
  return is_anthropics(path) ? anthropic_error_object : error_object;
}

void send_error(HttpResponse& response, const ApiError& error, ErrorObject object) {
  if (error.retry_after_seconds) {
    response.set_header("Retry-After", std::to_string(*error.retry_after_seconds));
  }
  response.send(error.status, "application/json", to_text(object(error)));
}

HttpRefusal to_http_refusal(const ApiError& error, ErrorObject object) {
  HttpRefusal refusal{.status = error.status, .message = error.message};
  if (error.retry_after_seconds) {
    refusal.headers.emplace("Retry-After", std::to_string(*error.retry_after_seconds));
  }
  refusal.body = to_text(object(error));
  return refusal;
}

std::string http_error_body(std::string_view path, int status, std::string_view message) {
  ApiError error{.status = status, .message = std::string(message)};
  if (is_anthropics(path)) return to_text(anthropic_error_object(error));
  if (status >= 500) error.type = "server_error";
  if (status == 401) error.type = "authentication_error";
  if (status == 429) error.type = "rate_limit_error";
  for (const StatusCode& row : kStatusCodes) {
    if (row.status == status) error.code = std::string(row.code);
  }
  return to_text(error_object(error));
}

}  // namespace lockstep
