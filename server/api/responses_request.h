// The body of POST /v1/responses, stateless: nothing is stored, and nothing that was is asked for.
#pragma once

#include "server/api/chat_request.h"

namespace lockstep {

struct ResponsesRequest {
  ChatRequest chat;
  Json echoed;  // what the answer repeats of the request, as the answer words it
};

ApiResult<ResponsesRequest> parse_responses(const Json& body, const RequestLimits& limits);

}  // namespace lockstep
