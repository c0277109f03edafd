// The body of POST /v1/chat/completions.
#pragma once

#include "server/api/common/chat_request.h"

namespace lockstep {

ApiResult<ChatRequest> parse_chat(const Json& body, const RequestLimits& limits);

// The template's variables of any body with "messages", "add_generation_prompt" and
// "chat_template_kwargs"; errors stay in `fields`. Contents come out as plain strings, the role
// "developer" as "system".
Json parse_template_variables(JsonFields& fields);

}  // namespace lockstep
