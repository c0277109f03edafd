#include "server/api/anthropic/messages_body.h"

#include <utility>

namespace lockstep {

std::string MessagesBody::body(const std::vector<Output>& whole, const AnswerUsage& usage) {
  const Output& answer = whole.front();
  const Turn turn = read_turn(rules_, answer.text);
  Json content = Json::array();
  if (!turn.reasoning.empty()) content.push_back(thinking_block(turn.reasoning));
  // An answer of nothing is an empty text; one that ends within its reasoning has no text.
  const bool is_empty = content.empty() && turn.calls.empty();
  if (!turn.text.empty() || is_empty) content.push_back(text_block(turn.text));
  for (const TurnCall& call : turn.calls) {
    auto input = parse_json(call.arguments);
    content.push_back(call_block(call.name, input ? std::move(*input) : Json::object()));
  }
  return to_text(finished_message(head_, answer, std::move(content), turn.calls.size(), usage));
}

}  // namespace lockstep
