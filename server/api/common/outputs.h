// The engine's outputs, added up and in the words of the log and of OpenAI's answers.
#pragma once

#include <string_view>

#include "engine/base/json_text.h"
#include "engine/engine.h"

namespace lockstep {

// Adds a later output of the same request.
void append_output(Output& whole, Output&& next);

// "stop", "length", "cancelled" …
std::string_view finish_name(FinishReason reason);

// The name as JSON; null while a request goes on.
Json finish_reason(const Output& output);

}  // namespace lockstep
