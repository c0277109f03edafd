// The body of POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients send it.
#pragma once

#include "server/api/common/chat_request.h"

namespace lockstep {

// `counts_only`: of count_tokens, which generates nothing and needs no max_tokens. What the context
// cannot hold of max_tokens is cut off, as Anthropic's API does.
ApiResult<ChatRequest> parse_messages(const Json& body, const RequestLimits& limits,
                                      bool counts_only);

}  // namespace lockstep
