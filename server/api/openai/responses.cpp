// POST /v1/responses, stateless.
#include <string>
#include <utility>

#include "server/api/common/answer.h"
#include "server/api/common/chat_request.h"
#include "server/api/common/prepare_request.h"
#include "server/api/openai/endpoints.h"
#include "server/api/openai/responses_answer.h"
#include "server/api/openai/responses_request.h"

namespace lockstep {
namespace {

ApiResult<ResponsesRequest> parse_request(const ServedModel& model, const HttpRequest& request) {
  const auto body = read_body(model, request);
  if (!body) return std::unexpected(body.error());
  auto parsed = parse_responses(*body, model.limits());
  if (!parsed) return parsed;
  if (auto unknown = model.resolve_name(parsed->chat.parameters.model)) {
    return std::unexpected(*unknown);
  }
  return parsed;
}

// The parts of a request that are kept while its answer is made.
struct PreparedResponse {
  ChatTurns turns;
  std::string echoed;
  std::string name;  // of the model, as the request has it
  bool stream = false;
};

ApiResult<PreparedResponse> prepare_response(const ServedModel& model, const HttpRequest& request) {
  auto parsed = parse_request(model, request);
  if (!parsed) return std::unexpected(parsed.error());
  std::string name = *parsed->chat.parameters.model;
  const bool stream = parsed->chat.parameters.stream;
  auto turns = make_chat_turns(model, std::move(parsed->chat), "input");
  if (!turns) return std::unexpected(turns.error());
  return PreparedResponse{std::move(*turns), std::move(parsed->echoed), std::move(name), stream};
}

}  // namespace

ApiResult<void> post_responses(Call& call) {
  auto prepared = prepare_request(call, prepare_response);
  if (!prepared) return std::unexpected(prepared.error());
  ChatTurns& turns = prepared->turns;
  AnswerPlan plan{.requests = std::move(turns.requests),
                  .slot = turns.slot,
                  .reasoning = ReasoningCount(turns.rules),
                  .constraint = std::move(turns.constraint),
                  .kept_bytes = prepared->echoed.size()};
  ResponseHead head = response_head(std::move(prepared->name), std::move(prepared->echoed));
  if (!prepared->stream) {
    ResponsesBody writer(std::move(turns.rules), std::move(head));
    return answer_whole(call, std::move(plan), writer);
  }
  ResponsesStream writer(std::move(turns.rules), std::move(head));
  return answer_stream(call, std::move(plan), writer);
}

}  // namespace lockstep
