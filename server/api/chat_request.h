// The body of POST /v1/chat/completions.
#pragma once

#include "server/api/generation_parameters.h"

namespace lockstep {

struct ChatRequest {
  GenerationParameters parameters;
  Json variables;  // for the chat template: messages, add_generation_prompt and what was passed on
};

ApiResult<ChatRequest> parse_chat(const Json& body, const RequestLimits& limits);

// The template's variables of any body with "messages", "add_generation_prompt" and
// "chat_template_kwargs"; errors stay in `fields`. Contents come out as plain strings, the role
// "developer" as "system".
Json parse_template_variables(JsonFields& fields);

// The prompt of a chat: the rendered template, with its special tokens as tokens.
ApiResult<std::vector<TokenId>> encode_chat(const ServedModel& model, const Json& variables);

}  // namespace lockstep
