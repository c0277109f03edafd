// What the HTTP layer answers by itself, in the words of the API that was asked.
#pragma once

#include <string>
#include <string_view>

#include "server/api/common/api_error.h"
#include "server/http/http_refusal.h"

namespace lockstep {

// As HttpErrorBody has it: Anthropic's error object for /v1/messages and below, OpenAI's elsewhere.
std::string http_error_body(std::string_view path, int status, std::string_view message);

// An error of ours as the HTTP layer's refusal of a request for this path.
HttpRefusal to_http_refusal(std::string_view path, const ApiError& error);

}  // namespace lockstep
