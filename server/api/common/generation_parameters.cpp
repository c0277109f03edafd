#include "server/api/common/generation_parameters.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

namespace lockstep {
namespace {

constexpr size_t kStopStringsMax = 16;  // OpenAI allows 4; more is common and costs little
constexpr size_t kStopBytesMax = 1024;
constexpr size_t kStopTokensMax = 256;
constexpr size_t kLogitBiasMax = 1024;  // each choice has its copy
constexpr int64_t kPriorityMax = 1000;
constexpr size_t kCacheSaltBytesMax = 256;
constexpr size_t kCountedContexts = 4;  // a prompt that is longer is not counted to its end
constexpr int64_t kCountMax = std::numeric_limits<int32_t>::max();

std::optional<uint32_t> count(JsonFields& fields, std::string_view name, int64_t minimum,
                              int64_t maximum) {
  const auto number = fields.integer(name, minimum, maximum);
  if (!number) return std::nullopt;
  return static_cast<uint32_t>(*number);
}

float real(JsonFields& fields, std::string_view name, double minimum, double maximum,
           float fallback) {
  const auto number = fields.number(name, minimum, maximum);
  return number ? static_cast<float>(*number) : fallback;
}

std::vector<TokenId> parse_stop_tokens(JsonFields& fields, const RequestLimits& limits) {
  const Json* list = fields.array("stop_token_ids");
  if (list == nullptr) return {};
  if (list->size() > kStopTokensMax) {
    fields.refuse("stop_token_ids",
                  fmt::format("must have at most {} ids, not {}", kStopTokensMax, list->size()));
    return {};
  }
  std::vector<TokenId> tokens;
  for (const Json& value : *list) {
    if (const auto token = token_id(value, limits.vocabulary_size)) {
      tokens.push_back(*token);
    } else {
      fields.refuse("stop_token_ids", fmt::format("must be token ids from 0 to {}, not {:.100}",
                                                  limits.vocabulary_size - 1, to_text(value)));
    }
  }
  return tokens;
}

std::vector<std::pair<TokenId, float>> parse_logit_bias(JsonFields& fields,
                                                        const RequestLimits& limits) {
  const Json* map = fields.object("logit_bias");
  if (map == nullptr) return {};
  if (map->size() > kLogitBiasMax) {
    fields.refuse("logit_bias",
                  fmt::format("must have at most {} tokens, not {}", kLogitBiasMax, map->size()));
    return {};
  }
  std::vector<std::pair<TokenId, float>> biases;
  for (const auto& [key, value] : map->items()) {
    TokenId token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 ||
        static_cast<uint32_t>(token) >= limits.vocabulary_size) {
      fields.refuse("logit_bias",
                    fmt::format("names must be token ids from 0 to {}, not \"{:.40}\"",
                                limits.vocabulary_size - 1, key));
      return {};
    }
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100)) {
      fields.refuse("logit_bias",
                    fmt::format("must be numbers from -100 to 100, not {:.100}", to_text(value)));
      return {};
    }
    biases.emplace_back(token, value.get<float>());
  }
  return biases;
}

void parse_sampling(JsonFields& fields, const RequestLimits& limits, SamplingParameters& sampling) {
  sampling.temperature = real(fields, "temperature", 0, 2, 1);
  // The engine wants more than 0: the least number keeps only the most likely token, as 0 does.
  sampling.top_p = std::max(real(fields, "top_p", 0, 1, 1), std::numeric_limits<float>::min());
  sampling.min_p = real(fields, "min_p", 0, 1, 0);
  sampling.presence_penalty = real(fields, "presence_penalty", -2, 2, 0);
  sampling.frequency_penalty = real(fields, "frequency_penalty", -2, 2, 0);
  sampling.repetition_penalty = real(fields, "repetition_penalty", 0.01, 100, 1);
  // -1 is how other servers write "no limit".
  const auto top_k = fields.integer("top_k", -1, kCountMax);
  sampling.top_k = top_k && *top_k > 0 ? static_cast<uint32_t>(*top_k) : 0;
  sampling.logit_bias = parse_logit_bias(fields, limits);
}

void parse_stream(JsonFields& fields, GenerationParameters& parameters) {
  parameters.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return;
  if (!parameters.stream) fields.refuse("stream_options", "is only allowed when stream is true");
  JsonFields inner(*options, fields.path() + "stream_options.");
  parameters.include_usage = inner.boolean("include_usage").value_or(false);
  fields.adopt(inner);
}

// Seconds until the request ends: the server's, or less if it says so; 0: none.
double parse_deadline(JsonFields& fields, const RequestLimits& limits) {
  const auto seconds = fields.number("timeout", 0.001, 86'400);
  if (!seconds) return limits.request_seconds;
  return limits.request_seconds > 0 ? std::min(*seconds, limits.request_seconds) : *seconds;
}

std::string parse_cache_salt(JsonFields& fields) {
  std::string salt = fields.text("cache_salt").value_or("");
  if (salt.size() > kCacheSaltBytesMax) {
    fields.refuse("cache_salt", fmt::format("must have at most {} bytes, not {}",
                                            kCacheSaltBytesMax, salt.size()));
  }
  return salt;
}

// The finalizer of splitmix64 (Steele, Lea, Flood 2014): neighbours become unrelated.
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

uint64_t choice_seed(uint64_t seed, uint64_t choice) {
  return choice == 0 ? seed : mixed(seed + choice * 0x9e3779b97f4a7c15U);
}

// Every choice has a copy of its prompt, made before the engine can refuse it: what could never
// wait and run is refused here.
std::optional<ApiError> check_amount(const std::vector<std::vector<TokenId>>& prompts,
                                     uint64_t choices, const RequestLimits& limits,
                                     std::string_view parameter) {
  if (auto excess = check_choices(prompts.size(), choices, limits, parameter)) return excess;
  const uint64_t requests = prompts.size() * choices;
  uint64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += prompt.size() * choices;
  if (tokens <= limits.prompt_tokens_max) return std::nullopt;
  return bad_parameter(
      parameter, fmt::format("The prompts of all {} choices have {} tokens together; this server "
                             "takes at most {} in one request",
                             requests, tokens, limits.prompt_tokens_max));
}

// The bytes of memory for a token that is collected and written, and for a log-probability beside
// it: its place in JSON, as an object and as text.
constexpr uint64_t kAnswerTokenBytes = 100;
constexpr uint64_t kAnswerLogprobBytes = 400;

uint64_t answer_bytes(uint64_t tokens, const std::optional<uint32_t>& alternatives) {
  return tokens *
         (kAnswerTokenBytes + (alternatives ? (1 + *alternatives) * kAnswerLogprobBytes : 0));
}

// A whole answer lies in memory until its last token has come. A stream is given away as it comes.
std::optional<ApiError> check_answer(const GenerationParameters& parameters,
                                     const std::vector<Request>& requests,
                                     const RequestLimits& limits, std::string_view parameter) {
  if (parameters.stream || requests.size() <= 1) return std::nullopt;
  uint64_t bytes = 0;
  uint64_t tokens = 0;
  for (const Request& request : requests) {
    bytes += answer_bytes(request.max_tokens, request.logprobs);
    tokens += request.max_tokens;
    if (!request.prompt_logprobs) continue;
    bytes += answer_bytes(request.prompt.size(), request.prompt_logprobs);
    tokens += request.prompt.size();
  }
  if (bytes <= limits.answer_bytes_max) return std::nullopt;
  const auto& logprobs = parameters.request.logprobs;
  return bad_parameter(
      parameters.choices > 1 ? "n" : parameter,
      fmt::format("The answer may come to {} bytes ({} choices with {} tokens in all and {} "
                  "log-probabilities for each); this server collects at most {}. Ask for less, or "
                  "for a stream",
                  bytes, requests.size(), tokens, logprobs ? 1 + *logprobs : 0,
                  limits.answer_bytes_max));
}

// The most tokens to generate after a prompt, or nothing if prompt and answer do not fit.
std::optional<uint32_t> fitting_max_tokens(const GenerationParameters& parameters, uint64_t prompt,
                                           uint32_t default_max_tokens,
                                           const RequestLimits& limits) {
  if (prompt > limits.context_tokens) return std::nullopt;
  const auto left = static_cast<uint32_t>(limits.context_tokens - prompt);
  // A prompt may fill the context where it is only scored.
  if (parameters.max_tokens) {
    return *parameters.max_tokens <= left ? parameters.max_tokens : std::nullopt;
  }
  if (left == 0) return std::nullopt;
  return std::min(left, default_max_tokens);
}

// How a context can be had that is longer, where it is no longer than a pass.
std::string_view longer_context(const RequestLimits& limits) {
  return limits.whole_texts ? " This model computes a whole text in one pass: its server's options "
                              "--batch-tokens and --context say of how many tokens."
                            : "";
}

}  // namespace

std::optional<ApiError> check_choices(uint64_t prompts, uint64_t choices,
                                      const RequestLimits& limits, std::string_view parameter) {
  if (prompts * choices <= limits.requests_max) return std::nullopt;
  return bad_parameter(parameter,
                       fmt::format("{} prompts with n = {} make {} choices; this server takes at "
                                   "most {} in one request",
                                   prompts, choices, prompts * choices, limits.requests_max));
}

ApiError context_exceeded(const RequestLimits& limits, uint64_t prompt, uint64_t generated,
                          std::string_view parameter) {
  ApiError error = bad_parameter(
      parameter,
      fmt::format("This model's maximum context length is {} tokens, but {} were requested ({} in "
                  "the prompt, {} to generate). Shorten one of them.{}",
                  limits.context_tokens, prompt + generated, prompt, generated,
                  longer_context(limits)));
  error.code = "context_length_exceeded";
  return error;
}

ApiError context_exceeded_at_least(const RequestLimits& limits, uint64_t least,
                                   std::string_view parameter) {
  const std::string_view what = parameter == "prediction" ? parameter : "prompt";
  ApiError error = bad_parameter(
      parameter, fmt::format("This model's maximum context length is {} tokens, but the {} has at "
                             "least {}. Shorten it.{}",
                             limits.context_tokens, what, least, longer_context(limits)));
  error.code = "context_length_exceeded";
  return error;
}

ApiResult<std::vector<TokenId>> encode_fitting(const Tokenizer& tokenizer, std::string_view text,
                                               EncodeOptions options, const RequestLimits& limits,
                                               std::string_view parameter) {
  const auto refuse = [&](size_t least) {
    return std::unexpected(context_exceeded_at_least(limits, least, parameter));
  };
  const size_t least = tokenizer.least_tokens(text.size());
  if (least > limits.context_tokens) return refuse(least);
  options.tokens_max = size_t{limits.context_tokens} * kCountedContexts;
  auto tokens = tokenizer.encode(text, options);
  if (tokens.size() > options.tokens_max) return refuse(tokens.size());
  return tokens;
}

void parse_scheduling(JsonFields& fields, const RequestLimits& limits, Request& request) {
  request.priority =
      static_cast<int32_t>(fields.integer("priority", -kPriorityMax, kPriorityMax).value_or(0));
  request.deadline_seconds = parse_deadline(fields, limits);
  request.cache_salt = parse_cache_salt(fields);
}

std::vector<std::string> parse_stop(JsonFields& fields, std::string_view name) {
  const Json* value = fields.any(name);
  if (value == nullptr) return {};
  const size_t given = value->is_array() ? value->size() : 1;
  if (given > kStopStringsMax) {
    fields.refuse(name,
                  fmt::format("must have at most {} strings, not {}", kStopStringsMax, given));
    return {};
  }
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<std::string> stops;
  for (const Json& stop : list) {
    if (!stop.is_string()) {
      fields.refuse(name,
                    fmt::format("must be a string or a list of strings, not {}", kind_name(stop)));
      return {};
    }
    stops.push_back(stop.get<std::string>());
    if (stops.back().empty() || stops.back().size() > kStopBytesMax) {
      fields.refuse(name, fmt::format("each string must have 1 to {} bytes, not {}", kStopBytesMax,
                                      stops.back().size()));
    }
  }
  return stops;
}

GenerationParameters parse_generation(JsonFields& fields, const RequestLimits& limits) {
  GenerationParameters parameters;
  parameters.model = fields.text("model");
  parse_stream(fields, parameters);
  parameters.choices = count(fields, "n", 1, limits.choices_max).value_or(1);
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    parameters.seed = static_cast<uint64_t>(*seed);
  }
  // -1 is any, in llama-server's words; where there are no slots, so is every other.
  const bool has_slots = limits.slot_count > 0;
  const int64_t slot_most = has_slots ? int64_t{limits.slot_count} - 1 : kCountMax;
  const int64_t slot = fields.integer("id_slot", -1, slot_most).value_or(0);
  parameters.slot = has_slots ? static_cast<uint32_t>(std::max<int64_t>(0, slot)) : 0;
  Request& request = parameters.request;
  parse_sampling(fields, limits, request.sampling);
  parse_scheduling(fields, limits, request);
  request.min_tokens = count(fields, "min_tokens", 0, kCountMax).value_or(0);
  request.speculation = fields.boolean("speculation").value_or(true);
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  request.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  request.stop = parse_stop(fields, "stop");
  request.stop_tokens = parse_stop_tokens(fields, limits);
  parameters.structured_output = parse_structured_output(fields);
  return parameters;
}

void refuse_unsupported_features(JsonFields& fields) {
  for (const std::string_view name :
       {"suffix", "functions", "function_call", "audio", "web_search_options", "use_beam_search",
        "include_stop_str_in_output", "prompt_logprobs", "prompt_embeds", "truncate_prompt_tokens",
        "return_tokens_as_token_ids"}) {
    const Json* value = fields.any(name);
    if (name == "function_call" && value != nullptr && *value == "none") continue;
    fields.refuse_unsupported(name);
  }
  if (const Json* modalities = fields.any("modalities");
      modalities != nullptr && *modalities != Json::array({"text"})) {
    fields.refuse("modalities", "is not supported by this server but for [\"text\"]");
  }
}

ApiResult<std::vector<Request>> make_requests(const GenerationParameters& parameters,
                                              const std::vector<std::vector<TokenId>>& prompts,
                                              uint32_t default_max_tokens,
                                              const RequestLimits& limits,
                                              std::string_view parameter, uint64_t random_seed) {
  for (const auto& prompt : prompts) {
    if (!fitting_max_tokens(parameters, prompt.size(), default_max_tokens, limits)) {
      return std::unexpected(
          context_exceeded(limits, prompt.size(), parameters.max_tokens.value_or(1), parameter));
    }
  }
  if (auto excess = check_amount(prompts, parameters.choices, limits, parameter)) {
    return std::unexpected(std::move(*excess));
  }
  const uint64_t seed = parameters.seed.value_or(random_seed);
  std::vector<Request> requests;
  for (const auto& prompt : prompts) {
    const auto max_tokens =
        fitting_max_tokens(parameters, prompt.size(), default_max_tokens, limits);
    if (parameters.request.min_tokens > *max_tokens) {
      return std::unexpected(bad_parameter(
          "min_tokens", fmt::format("'min_tokens': {} is more than the {} tokens that may be "
                                    "generated",
                                    parameters.request.min_tokens, *max_tokens)));
    }
    for (uint32_t choice = 0; choice < parameters.choices; ++choice) {
      Request& request = requests.emplace_back(parameters.request);
      request.prompt = prompt;
      request.max_tokens = *max_tokens;
      request.sampling.seed = choice_seed(seed, choice);
    }
  }
  if (auto excess = check_answer(parameters, requests, limits, parameter)) {
    return std::unexpected(std::move(*excess));
  }
  return requests;
}

}  // namespace lockstep
