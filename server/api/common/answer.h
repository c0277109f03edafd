// Runs the engine's requests behind one HTTP request and sends the answer, whole or as a stream of
// server-sent events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/api/common/answer_writer.h"
#include "server/api/common/call.h"
#include "server/api/common/reasoning_count.h"

namespace lockstep {

struct AnswerPlan {
  std::vector<Request> requests;  // prompt after prompt, `choices` for each
  size_t choices = 1;
  // The slot whose conversation the first request is, where any are kept; none: no slot's.
  std::optional<uint32_t> slot = {};
  ReasoningCount reasoning = {};  // of each request, before its first token
  std::string constraint = {};    // the field that says what the answer must be, for errors
  size_t kept_bytes = 0;  // of the request's body, held by the writer until the answer is given
};

// Both block until the answer is given or refused, or its client has left; a client that leaves
// stops its requests. The caller holds no values of the body any more. An error is returned where
// nothing of the answer has been sent and the client is still there; the call's note is set once
// the engine has taken the requests.
ApiResult<void> answer_whole(Call& call, AnswerPlan plan, BodyWriter& writer);
ApiResult<void> answer_stream(Call& call, AnswerPlan plan, StreamWriter& writer);

}  // namespace lockstep
