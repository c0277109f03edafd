// The endpoints for Anthropic's clients.
#pragma once

#include "server/api/common/call.h"
#include "server/api/common/chat_request.h"

namespace lockstep {

ApiResult<void> post_messages(Call& call);
ApiResult<void> post_count_tokens(Call& call);

// The body of POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients send it.
// `counts_only`: of count_tokens, which generates nothing and needs no max_tokens. What the context
// cannot hold of max_tokens is cut off, as Anthropic's API does.
ApiResult<ChatRequest> parse_messages(const Json& body, const RequestLimits& limits,
                                      bool counts_only);

}  // namespace lockstep
