// Any bytes as the JSON body of a request; the first one says of which endpoint. What the readers
// take must keep the limits, what they refuse must be a sound error, and no byte may do worse.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/check.h"
#include "server/api/anthropic/endpoints.h"
#include "server/api/openai/completion_request.h"
#include "server/api/openai/endpoints.h"
#include "server/api/openai/responses_request.h"

namespace lockstep {
namespace {

constexpr RequestLimits kLimits{.vocabulary_size = 1000,
                                .context_tokens = 64,
                                .choices_max = 8,
                                .requests_max = 16,
                                .prompt_tokens_max = 1024,
                                .answer_bytes_max = 1 << 20};
// A message repeats a part of what was wrong, never all of it.
constexpr size_t kMessageBytesMax = 4096;

void check_error(const ApiError& error) {
  CHECK(error.status == 400, "status {}", error.status);
  CHECK(!error.message.empty() && error.message.size() <= kMessageBytesMax, "a message of {} bytes",
        error.message.size());
  for (const Json& object : {error_object(error), anthropic_error_object(error)}) {
    // The parts of the body that it repeats need not be UTF-8: the text is.
    const std::string text = to_text(object);
    const auto again = parse_json(text);
    CHECK(again.has_value() && to_text(*again) == text, "an error that is no JSON: {}", text);
  }
}

void check_parameters(const GenerationParameters& parameters,
                      const std::vector<std::vector<TokenId>>& prompts) {
  CHECK(parameters.choices >= 1 && parameters.choices <= kLimits.choices_max, "n = {}",
        parameters.choices);
  const auto requests = make_requests(parameters, prompts, 16, kLimits, "prompt", 1);
  if (!requests) return check_error(requests.error());
  CHECK(requests->size() == prompts.size() * parameters.choices, "{} requests", requests->size());
  for (const Request& request : *requests) {
    CHECK(request.prompt.size() + request.max_tokens <= kLimits.context_tokens, "{} + {} tokens",
          request.prompt.size(), request.max_tokens);
    for (const auto& [token, bias] : request.sampling.logit_bias) {
      CHECK(static_cast<uint32_t>(token) < kLimits.vocabulary_size, "token {}", token);
    }
  }
}

template <typename Parsed, typename Use>
void use_or_check_error(const ApiResult<Parsed>& parsed, Use use) {
  if (parsed) {
    use(*parsed);
  } else {
    check_error(parsed.error());
  }
}

void check_chat(const ChatRequest& chat) {
  check_parameters(chat.parameters, {{1, 2, 3}});
  CHECK(chat.variables["messages"].is_array(), "messages that are no list");
  static_cast<void>(to_text(chat.variables));
}

void check_completion(const CompletionRequest& completion) {
  std::vector<std::vector<TokenId>> prompts;
  for (const Prompt& prompt : completion.prompts) {
    const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt);
    prompts.push_back(tokens != nullptr ? *tokens : std::vector<TokenId>{1});
  }
  CHECK(!prompts.empty(), "no prompt");
  check_parameters(completion.parameters, prompts);
}

void read_body(uint8_t endpoint, std::string_view bytes) {
  HttpRequest request;
  request.method = "POST";
  request.headers.emplace("content-type", "application/json");
  request.body = bytes;
  const auto body = parse_body(request);
  if (!body) return check_error(body.error());
  switch (endpoint % 5) {
    case 0:
      return use_or_check_error(parse_completion(*body, kLimits), check_completion);
    case 1:
      return use_or_check_error(parse_chat(*body, kLimits), check_chat);
    case 2:
      return use_or_check_error(
          parse_responses(*body, kLimits),
          [](const ResponsesRequest& responses) { check_chat(responses.chat); });
    default:
      return use_or_check_error(parse_messages(*body, kLimits, endpoint % 5 == 4), check_chat);
  }
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  lockstep::read_body(bytes[0], {reinterpret_cast<const char*>(bytes) + 1, size - 1});
  return 0;
}
