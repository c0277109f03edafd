// Errors in the words of the dialect that was asked, which the path tells: Anthropic's for
// /v1/messages and below, OpenAI's elsewhere.
#pragma once

#include <string>
#include <string_view>

#include "engine/base/json_text.h"
#include "server/api/common/api_error.h"
#include "server/http/http_refusal.h"
#include "server/http/http_response.h"

namespace lockstep {

using ErrorObject = Json (*)(const ApiError& error);

ErrorObject error_object_of(std::string_view path);

// The error as the answer to a request, and as the HTTP layer's refusal of one.
void send_error(HttpResponse& response, const ApiError& error, ErrorObject object);
HttpRefusal to_http_refusal(const ApiError& error, ErrorObject object);

// HttpOptions::error_body: the HTTP layer's own errors.
std::string http_error_body(std::string_view path, int status, std::string_view message);

}  // namespace lockstep
