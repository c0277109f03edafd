#include "server/api/openai/embeddings.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "server/api/common/answer.h"
#include "server/api/common/prepare_request.h"
#include "server/api/openai/endpoints.h"

namespace lockstep {
namespace {

constexpr size_t kInputsMax = 2048;             // OpenAI's
constexpr uint64_t kAnswerBytesMax = 32 << 20;  // a whole answer is held in memory
constexpr uint64_t kNumberBytes = 13;           // of an f32 in JSON, mostly: -0.012345678,

std::string input_name(size_t index) {
  return fmt::format("input[{}]", index);
}

// The ids of the list called `name`; what they are is refused by place.
std::vector<TokenId> parse_ids(JsonFields& fields, const std::string& name, const Json& list,
                               const RequestLimits& limits) {
  if (list.empty()) fields.refuse(name, "must not be empty");
  std::vector<TokenId> tokens;
  for (size_t index = 0; index < list.size(); ++index) {
    const Json& value = list[index];
    if (const auto token = token_id(value, limits.vocabulary_size)) {
      tokens.push_back(*token);
      continue;
    }
    fields.refuse(name, fmt::format("[{}] must be a token id from 0 to {}, not {:.100}", index,
                                    limits.vocabulary_size - 1, to_text(value)));
    return {};
  }
  return tokens;
}

std::optional<Prompt> parse_text(JsonFields& fields, const std::string& name, const Json& value) {
  auto text = value.get<std::string>();
  if (!text.empty()) return Prompt(std::move(text));
  fields.refuse(name, "must not be empty");
  return std::nullopt;
}

void parse_list(JsonFields& fields, const Json& list, const RequestLimits& limits,
                std::vector<Prompt>& inputs) {
  if (list.size() > kInputsMax) {
    fields.refuse("input",
                  fmt::format("must have at most {} inputs, not {}", kInputsMax, list.size()));
    return;
  }
  const bool strings = list.front().is_string();
  for (size_t index = 0; index < list.size(); ++index) {
    const Json& element = list[index];
    if (strings && element.is_string()) {
      auto text = parse_text(fields, input_name(index), element);
      if (text) inputs.push_back(std::move(*text));
    } else if (!strings && element.is_array()) {
      inputs.emplace_back(parse_ids(fields, input_name(index), element, limits));
    } else {
      fields.refuse(input_name(index),
                    fmt::format("must be {}, not {}", strings ? "a string" : "a list of token ids",
                                kind_name(element)));
    }
    if (fields.error()) return;
  }
}

std::vector<Prompt> parse_inputs(JsonFields& fields, const RequestLimits& limits) {
  std::vector<Prompt> inputs;
  const Json* value = fields.any("input");
  if (value == nullptr) {
    fields.refuse("input", "is required");
  } else if (value->is_string()) {
    auto text = parse_text(fields, "input", *value);
    if (text) inputs.push_back(std::move(*text));
  } else if (!value->is_array() || value->empty()) {
    fields.refuse("input",
                  "must be a string, a list of strings, a list of token ids or a list of lists of "
                  "token ids; no list may be empty");
  } else if (value->front().is_number()) {
    inputs.emplace_back(parse_ids(fields, "input", *value, limits));
  } else {
    parse_list(fields, *value, limits, inputs);
  }
  return inputs;
}

bool parse_base64(JsonFields& fields) {
  const std::string format = fields.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64") {
    fields.refuse("encoding_format",
                  fmt::format("must be \"float\" or \"base64\", not \"{:.40}\"", format));
  }
  return format == "base64";
}

// A part of an embedding is one only where the model was trained for that; no file says so.
void check_dimensions(JsonFields& fields, uint32_t width) {
  const auto dimensions = fields.integer("dimensions", INT64_MIN, INT64_MAX);
  if (!dimensions || *dimensions == width) return;
  fields.refuse("dimensions", fmt::format("must be {}, the width of this model's embeddings, which "
                                          "cannot be cut, not {}",
                                          width, *dimensions));
}

std::optional<ApiError> check_answer(uint64_t inputs, uint32_t width, bool base64) {
  const uint64_t each =
      base64 ? (uint64_t{width} * sizeof(float) + 2) / 3 * 4 : uint64_t{width} * kNumberBytes;
  if (inputs * each <= kAnswerBytesMax) return std::nullopt;
  return bad_parameter(
      "input", fmt::format("'input': {} embeddings of {} numbers make an answer of about {} MiB; "
                           "this server gives at most {} MiB: send fewer inputs at a time{}",
                           inputs, width, (inputs * each) >> 20U, kAnswerBytesMax >> 20U,
                           base64 ? "" : ", or ask for encoding_format base64"));
}

ApiResult<EmbeddingRequest> parse(const ServedModel& model, const RequestLimits& limits,
                                  const HttpRequest& request) {
  const auto body = read_body(model, request);
  if (!body) return std::unexpected(body.error());
  const ModelInfo& info = model.engine().model();
  auto asked = parse_embedding(*body, limits, info.embedding_width);
  if (!asked) return asked;
  if (auto unknown = model.resolve_name(asked->model)) return std::unexpected(*unknown);
  if (info.pooling.empty()) {
    return std::unexpected(
        bad_parameter("model", "This model gives no embeddings: " + info.embedding_refusal));
  }
  return asked;
}

// The parts of a request that are kept while its answer is made.
struct PreparedEmbedding {
  std::vector<Request> requests;
  std::string name;  // of the model, as the request has it
  bool base64 = false;
};

ApiResult<PreparedEmbedding> prepare_embedding(const ServedModel& model,
                                               const HttpRequest& request) {
  const RequestLimits limits = model.limits();
  const auto asked = parse(model, limits, request);
  if (!asked) return std::unexpected(asked.error());
  auto requests = make_embedding_requests(*asked, model.engine().tokenizer(), limits,
                                          model.engine().model().embedding_width);
  if (!requests) return std::unexpected(requests.error());
  return PreparedEmbedding{std::move(*requests), *asked->model, asked->base64};
}

}  // namespace

ApiResult<EmbeddingRequest> parse_embedding(const Json& body, const RequestLimits& limits,
                                            uint32_t width) {
  JsonFields fields(body);
  EmbeddingRequest asked;
  asked.model = fields.text("model");
  asked.inputs = parse_inputs(fields, limits);
  asked.base64 = parse_base64(fields);
  check_dimensions(fields, width);
  fields.text("user");
  asked.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  parse_scheduling(fields, limits, asked.request);
  asked.request.normalizes = fields.boolean("normalize").value_or(true);
  for (const char* name : {"stream", "truncate_prompt_tokens", "messages"}) {
    fields.refuse_unsupported(name);
  }
  if (fields.error()) return std::unexpected(*fields.error());
  return asked;
}

ApiResult<std::vector<Request>> make_embedding_requests(const EmbeddingRequest& asked,
                                                        const Tokenizer& tokenizer,
                                                        const RequestLimits& limits,
                                                        uint32_t width) {
  if (auto excess = check_answer(asked.inputs.size(), width, asked.base64)) {
    return std::unexpected(std::move(*excess));
  }
  const EncodeOptions options{.add_special = asked.add_special_tokens, .parse_special = true};
  const bool alone = asked.inputs.size() == 1;
  std::vector<Request> requests;
  uint64_t tokens = 0;
  for (size_t index = 0; index < asked.inputs.size(); ++index) {
    const std::string name = alone ? "input" : input_name(index);
    Request& request = requests.emplace_back(asked.request);
    const auto* ids = std::get_if<std::vector<TokenId>>(&asked.inputs[index]);
    if (ids != nullptr) {
      request.prompt = *ids;
    } else {
      auto encoded = encode_fitting(tokenizer, std::get<std::string>(asked.inputs[index]), options,
                                    limits, name);
      if (!encoded) return std::unexpected(std::move(encoded.error()));
      request.prompt = std::move(*encoded);
    }
    request.embedding = true;
    request.max_tokens = 0;
    if (request.prompt.empty()) {
      return std::unexpected(bad_parameter(name, fmt::format("'{}': comes to no tokens", name)));
    }
    if (request.prompt.size() > limits.context_tokens) {
      return std::unexpected(context_exceeded(limits, request.prompt.size(), 0, name));
    }
    tokens += request.prompt.size();
  }
  if (tokens <= limits.prompt_tokens_max) return requests;
  return std::unexpected(bad_parameter(
      "input", fmt::format("'input': {} inputs have {} tokens together; this server takes at most "
                           "{} in one request",
                           requests.size(), tokens, limits.prompt_tokens_max)));
}

static_assert(std::endian::native == std::endian::little, "embeddings are little endian");

std::string floats_in_base64(std::span<const float> numbers) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::span<const std::byte> bytes = std::as_bytes(numbers);
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t begin = 0; begin < bytes.size(); begin += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - begin);
    uint32_t group = 0;
    for (size_t place = 0; place < 3; ++place) {
      group = group << 8U | (place < count ? std::to_integer<uint32_t>(bytes[begin + place]) : 0);
    }
    for (size_t digit = 0; digit < 4; ++digit) {
      text += digit <= count ? kDigits[group >> (18 - 6 * digit) & 63U] : '=';
    }
  }
  return text;
}

// Written as text: as a value, each number would take many times the place. Numbers are the
// shortest that an f32 is read back from.
std::string EmbeddingsBody::body(const std::vector<Output>& whole, const AnswerUsage& usage) {
  std::string text = R"({"object":"list","data":[)";
  const auto end = std::back_inserter(text);
  for (size_t index = 0; index < whole.size(); ++index) {
    fmt::format_to(end, R"({}{{"object":"embedding","index":{},"embedding":)",
                   index == 0 ? "" : ",", index);
    if (base64_) {
      fmt::format_to(end, R"("{}"}})", floats_in_base64(whole[index].embedding));
    } else {
      fmt::format_to(end, "[{}]}}", fmt::join(whole[index].embedding, ","));
    }
  }
  fmt::format_to(end, R"(],"model":{},"usage":{{"prompt_tokens":{},"total_tokens":{}}}}})",
                 to_text(Json(name_)), usage.prompt_tokens, usage.prompt_tokens);
  return text;
}

ApiResult<void> post_embeddings(Call& call) {
  auto prepared = prepare_request(call, prepare_embedding);
  if (!prepared) return std::unexpected(prepared.error());
  EmbeddingsBody writer(std::move(prepared->name), prepared->base64);
  return answer_whole(call, {.requests = std::move(prepared->requests)}, writer);
}

}  // namespace lockstep
