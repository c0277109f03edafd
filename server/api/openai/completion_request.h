// The bodies of POST /v1/completions and /v1/chat/completions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "server/api/common/chat_request.h"
#include "server/api/common/generation_parameters.h"

namespace lockstep {

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  GenerationParameters parameters;
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;
  bool add_special_tokens = true;  // to prompts that are strings
};

// The bytes of the prompts as they are kept: text, or ids.
size_t bytes_of(std::span<const Prompt> prompts);

ApiResult<CompletionRequest> parse_completion(const Json& body, const RequestLimits& limits);

// The tokens of each prompt, at least one. A string without tokens becomes the beginning token, or
// 400 where the vocabulary has none. 400 for one that can never fit the context.
ApiResult<std::vector<std::vector<TokenId>>> encode_prompts(const CompletionRequest& request,
                                                            const Tokenizer& tokenizer,
                                                            const RequestLimits& limits);

// The body of POST /v1/chat/completions.
ApiResult<ChatRequest> parse_chat(const Json& body, const RequestLimits& limits);

// The template's variables of any body with "messages", "add_generation_prompt" and
// "chat_template_kwargs"; errors stay in `fields`. Contents come out as plain strings, the role
// "developer" as "system".
Json parse_template_variables(JsonFields& fields);

}  // namespace lockstep
