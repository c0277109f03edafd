// An error in Anthropic's words.
#pragma once

#include "engine/base/json_text.h"
#include "server/api/common/api_error.h"

namespace lockstep {

// {"type":"error","error":{"type","message"}}.
Json anthropic_error_object(const ApiError& error);

}  // namespace lockstep
