// From a parsed conversation to the engine's requests, and to the rules by which their text is
// read: what /v1/chat/completions, /v1/responses and /v1/messages have in common.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/common/chat_request.h"
#include "server/api/common/turn_parser.h"

namespace lockstep {

struct ChatTurns {
  std::vector<Request> requests;  // one per choice
  TurnRules rules;
  std::string constraint;  // the field that says what the turn must be; empty: none does
};

// The prompt of the conversation, with its tools; its variables are changed for that. Reasoning
// that the template opens is closed again where the answer is held to a form. Fails with 400 where
// the model's chat template cannot take the conversation or the tools. `parameter` names the
// conversation in errors.
// `must_fit`: 400 also for a prompt that can never fit the context.
ApiResult<ChatPrompt> encode_chat_turn(const ServedModel& model, ChatRequest& chat,
                                       std::string_view parameter, bool must_fit = false);

// Fails as encode_chat_turn() does, and where the context cannot hold it.
ApiResult<ChatTurns> make_chat_turns(const ServedModel& model, ChatRequest chat,
                                     std::string_view parameter);

}  // namespace lockstep
