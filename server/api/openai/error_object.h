// An error in OpenAI's words.
#pragma once

#include "engine/base/json_text.h"
#include "server/api/common/api_error.h"

namespace lockstep {

// {"error":{"message","type","param","code"}}.
Json error_object(const ApiError& error);

}  // namespace lockstep
