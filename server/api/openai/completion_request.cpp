#include "server/api/openai/completion_request.h"

#include <limits>
#include <utility>

namespace lockstep {
namespace {

constexpr int64_t kLogprobsMax = 5;  // OpenAI's, for this endpoint
constexpr int64_t kBestOfMax = 20;

void refuse_prompt(JsonFields& fields) {
  fields.refuse("prompt",
                "must be a string, a list of strings, a list of token ids or a list of lists of "
                "token ids; no list may be empty");
}

// The ids of one prompt; empty after an error.
std::vector<TokenId> parse_ids(JsonFields& fields, const Json& list, const RequestLimits& limits) {
  std::vector<TokenId> tokens;
  if (list.empty()) refuse_prompt(fields);
  for (const Json& value : list) {
    if (!value.is_number_integer()) {
      refuse_prompt(fields);
      return {};
    }
    const auto token = token_id(value, limits.vocabulary_size);
    if (!token) {
      fields.refuse("prompt", fmt::format("token ids must be from 0 to {}, not {}",
                                          limits.vocabulary_size - 1, to_text(value)));
      return {};
    }
    tokens.push_back(*token);
  }
  return tokens;
}

// How many prompts there are, without looking at any.
size_t prompt_count(const JsonFields& fields) {
  const Json* value = fields.any("prompt");
  const bool many =
      value != nullptr && value->is_array() && !value->empty() && !value->front().is_number();
  return many ? value->size() : 1;
}

std::vector<Prompt> parse_prompts(JsonFields& fields, const RequestLimits& limits) {
  const Json* value = fields.any("prompt");
  // Made without a list of initializers: where memory is refused, GCC 12 destroys one wrongly.
  std::vector<Prompt> prompts;
  // Unset is the beginning of a new document, as the empty string is.
  if (value == nullptr || value->is_string()) {
    prompts.emplace_back(value == nullptr ? std::string() : value->get<std::string>());
    return prompts;
  }
  if (!value->is_array() || value->empty()) {
    refuse_prompt(fields);
    return prompts;
  }
  if (value->front().is_number()) {
    prompts.emplace_back(parse_ids(fields, *value, limits));
    return prompts;
  }
  const bool strings = value->front().is_string();
  for (const Json& element : *value) {
    if (strings && element.is_string()) {
      prompts.emplace_back(element.get<std::string>());
    } else if (!strings && element.is_array()) {
      prompts.emplace_back(parse_ids(fields, element, limits));
    } else {
      refuse_prompt(fields);
      return {};
    }
  }
  return prompts;
}

}  // namespace

size_t bytes_of(std::span<const Prompt> prompts) {
  size_t bytes = 0;
  for (const Prompt& prompt : prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    bytes += text != nullptr ? text->size()
                             : std::get<std::vector<TokenId>>(prompt).size() * sizeof(TokenId);
  }
  return bytes;
}

ApiResult<CompletionRequest> parse_completion(const Json& body, const RequestLimits& limits) {
  JsonFields fields(body);
  CompletionRequest completion;
  GenerationParameters& parameters = completion.parameters;
  parameters = parse_generation(fields, limits);
  if (const auto most = fields.integer("max_tokens", 0, std::numeric_limits<int32_t>::max())) {
    parameters.max_tokens = static_cast<uint32_t>(*most);
  }
  if (fields.error()) return std::unexpected(*fields.error());
  if (auto excess = check_choices(prompt_count(fields), parameters.choices, limits, "prompt")) {
    return std::unexpected(std::move(*excess));
  }
  completion.prompts = parse_prompts(fields, limits);
  completion.echo = fields.boolean("echo").value_or(false);
  completion.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  if (const auto logprobs = fields.integer("logprobs", 0, kLogprobsMax)) {
    parameters.request.logprobs = static_cast<uint32_t>(*logprobs);
    if (completion.echo) parameters.request.prompt_logprobs = parameters.request.logprobs;
  }
  const auto best_of = fields.integer("best_of", 0, kBestOfMax);
  if (best_of && *best_of > parameters.choices) {
    fields.refuse("best_of", "is not supported by this server beyond n");
  }
  fields.refuse_unsupported("tools");
  if (fields.text("suffix")) fields.refuse_unsupported("suffix");
  refuse_unsupported_features(fields);
  if (fields.error()) return std::unexpected(*fields.error());
  return completion;
}

ApiResult<std::vector<std::vector<TokenId>>> encode_prompts(const CompletionRequest& request,
                                                            const Tokenizer& tokenizer,
                                                            const RequestLimits& limits) {
  const EncodeOptions options{.add_special = request.add_special_tokens, .parse_special = true};
  std::vector<std::vector<TokenId>> encoded;
  for (const Prompt& prompt : request.prompts) {
    std::vector<TokenId>& tokens = encoded.emplace_back();
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
      tokens = *ids;
    } else {
      auto fitting =
          encode_fitting(tokenizer, std::get<std::string>(prompt), options, limits, "prompt");
      if (!fitting) return std::unexpected(std::move(fitting.error()));
      tokens = std::move(*fitting);
    }
    if (tokens.empty() && tokenizer.bos()) tokens.push_back(*tokenizer.bos());
    if (tokens.empty()) {
      return std::unexpected(bad_parameter(
          "prompt",
          "'prompt': must not be empty: this model has no beginning token to start from"));
    }
  }
  return encoded;
}

}  // namespace lockstep
