#include "server/api/anthropic/error_object.h"

#include <string_view>

namespace lockstep {
namespace {

struct ErrorType {
  int status;
  std::string_view type;
};

// Anthropic's names.
constexpr ErrorType kErrorTypes[] = {{400, "invalid_request_error"}, {401, "authentication_error"},
                                     {403, "permission_error"},      {404, "not_found_error"},
                                     {413, "request_too_large"},     {429, "rate_limit_error"},
                                     {503, "overloaded_error"},      {504, "timeout_error"}};

std::string_view error_type(int status) {
  for (const ErrorType& row : kErrorTypes) {
    if (row.status == status) return row.type;
  }
  return status < 500 ? "invalid_request_error" : "api_error";
}

}  // namespace

Json anthropic_error_object(const ApiError& error) {
  return {{"type", "error"},
          {"error", {{"type", error_type(error.status)}, {"message", error.message}}}};
}

}  // namespace lockstep
