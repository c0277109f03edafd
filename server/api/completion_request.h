// The body of POST /v1/completions.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "server/api/generation_parameters.h"

namespace lockstep {

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  GenerationParameters parameters;
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;
  bool add_special_tokens = true;  // to prompts that are strings
};

ApiResult<CompletionRequest> parse_completion(const Json& body, const RequestLimits& limits);

struct EncodedPrompt {
  std::vector<TokenId> tokens;  // at least one
  std::string text;             // what `echo` gives back
};

// A string without tokens becomes the beginning token, or 400 where the vocabulary has none. 400
// for one that can never fit the context.
ApiResult<std::vector<EncodedPrompt>> encode_prompts(const CompletionRequest& request,
                                                     const Tokenizer& tokenizer,
                                                     const RequestLimits& limits);

}  // namespace lockstep
