#include "server/api/openai/responses_body.h"

#include "server/api/common/random.h"

namespace lockstep {
namespace {

using Kind = TurnEvent::Kind;

}  // namespace

std::string ResponsesBody::body(const std::vector<Output>& whole, const AnswerUsage& usage) {
  const Output& answer = whole.front();
  const Turn turn = read_turn(rules_, answer.text);
  const bool cut = answer.finish == FinishReason::kLength;
  const auto status = [&](Kind kind) { return cut && turn.open == kind ? kItemCut : kItemDone; };
  Json output = Json::array();
  if (!turn.reasoning.empty()) {
    output.push_back(content_item(Kind::kReasoning, random_id("rs_"), status(Kind::kReasoning),
                                  Json::array({content_part(Kind::kReasoning, turn.reasoning)})));
  }
  // As in a stream: an answer that has got no further than reasoning has no message.
  if (!turn.text.empty() || (output.empty() && turn.calls.empty())) {
    output.push_back(content_item(Kind::kText, random_id("msg_"), status(Kind::kText),
                                  Json::array({content_part(Kind::kText, turn.text)})));
  }
  for (const TurnCall& call : turn.calls) {
    output.push_back(
        call_item(random_id("fc_"), random_id("call_"), call.name, call.arguments, kItemDone));
  }
  return with_members(finished_response(head_, answer, std::move(output), usage), head_.echoed);
}

}  // namespace lockstep
