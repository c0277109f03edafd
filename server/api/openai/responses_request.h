// The body of POST /v1/responses, stateless: nothing is stored, and nothing that was is asked for.
#pragma once

#include "server/api/common/chat_request.h"

namespace lockstep {

struct ResponsesRequest {
  ChatRequest chat;
  // What the answer repeats of the request, as the answer words it: the members of an object, as
  // JSON text, which takes no more than one and a half times what the request has of them.
  std::string echoed;
};

ApiResult<ResponsesRequest> parse_responses(const Json& body, const RequestLimits& limits);

}  // namespace lockstep
