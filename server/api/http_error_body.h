// What the HTTP layer answers by itself, in the words of the API that was asked.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// As HttpErrorBody has it: Anthropic's error object for /v1/messages and below, OpenAI's elsewhere.
std::string http_error_body(std::string_view path, int status, std::string_view message);

}  // namespace lockstep
