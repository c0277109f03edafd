// The body of POST /v1/responses, stateless: nothing is stored, and nothing that was is asked for.
#pragma once

#include <string>

#include "engine/base/json.h"
#include "server/api/common/chat_request.h"

namespace lockstep {

// Appends the value in one line with numbers in their shortest form. For a value that was read from
// JSON this is at most one and a half times its text there ("3e9" becomes "3e+09"), where to_text()
// may write four times as much ("1e15" as "1000000000000000.0"). As deep as the value is nested.
void append_compact_text(const Json& value, std::string& text);

struct ResponsesRequest {
  ChatRequest chat;
  // The members of the request that the answer repeats, as the answer words them: the members of an
  // object, as JSON text, which takes no more than one and a half times what the request has of
  // them.
  std::string echoed;
};

ApiResult<ResponsesRequest> parse_responses(const Json& body, const RequestLimits& limits);

}  // namespace lockstep
