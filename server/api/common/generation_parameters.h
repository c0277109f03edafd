// The fields that say how to generate, which /v1/completions and /v1/chat/completions have in
// common, and the engine's requests that come of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/api/common/json_fields.h"
#include "server/api/common/served_model.h"
#include "server/api/common/structured_output.h"

namespace lockstep {

struct GenerationParameters {
  std::optional<std::string> model;
  bool stream = false;
  bool include_usage = false;  // of a stream
  uint32_t choices = 1;        // n: per prompt
  std::optional<uint32_t> max_tokens;
  std::optional<uint64_t> seed;
  uint32_t slot = 0;  // id_slot: which has the conversation afterwards
  std::optional<StructuredOutput> structured_output;
  Request request;  // everything but id, prompt, seed, grammar, max_tokens and on_output
};

// Reads the shared fields; errors stay in `fields`.
GenerationParameters parse_generation(JsonFields& fields, const RequestLimits& limits);

// Reads those that say when a request is served: priority, timeout and cache_salt.
void parse_scheduling(JsonFields& fields, const RequestLimits& limits, Request& request);

// The stop strings of field `name`: one, or a list.
std::vector<std::string> parse_stop(JsonFields& fields, std::string_view name);

// Refuses the fields that ask for what this server does not do yet (audio, beams …); they are never
// silently ignored.
void refuse_unsupported_features(JsonFields& fields);

// One engine request per choice, index = prompt * choices + choice. A choice's seed depends on the
// request's seed and the choice's number within its prompt alone; choice 0 has the seed itself.
// Without max_tokens a choice may take `default_max_tokens`, or what the context leaves if that is
// less. 400 (context_length_exceeded, with the numbers, about `parameter`) for what cannot fit; 400
// for more choices, more tokens of prompts, or a larger whole answer than the limits allow.
ApiResult<std::vector<Request>> make_requests(const GenerationParameters& parameters,
                                              const std::vector<std::vector<TokenId>>& prompts,
                                              uint32_t default_max_tokens,
                                              const RequestLimits& limits,
                                              std::string_view parameter, uint64_t random_seed);

// 400 for more choices of all prompts than are ever admitted: known before a prompt is looked at.
std::optional<ApiError> check_choices(uint64_t prompts, uint64_t choices,
                                      const RequestLimits& limits, std::string_view parameter);

// 400 (context_length_exceeded, with the numbers, about `parameter`).
ApiError context_exceeded(const RequestLimits& limits, uint64_t prompt, uint64_t generated,
                          std::string_view parameter);

// Likewise of a prompt that was not counted to its end, of which `least` tokens are known.
ApiError context_exceeded_at_least(const RequestLimits& limits, uint64_t least,
                                   std::string_view parameter);

// The tokens of a prompt's text. One that cannot fit the context whatever its letters are is
// refused before it is tokenized, and of one that comes to far more tokens the rest is not looked
// at: 400 as context_exceeded_at_least().
ApiResult<std::vector<TokenId>> encode_fitting(const Tokenizer& tokenizer, std::string_view text,
                                               EncodeOptions options, const RequestLimits& limits,
                                               std::string_view parameter);

}  // namespace lockstep
