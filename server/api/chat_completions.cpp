// POST /v1/chat/completions.
#include <limits>
#include <utility>

#include "server/api/answer.h"
#include "server/api/chat_format.h"
#include "server/api/chat_request.h"
#include "server/api/endpoints.h"

namespace lockstep {
namespace {

ApiResult<void> chat(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  if (auto unready = model.check_ready()) return std::unexpected(*unready);
  const auto body = parse_body(request);
  if (!body) return std::unexpected(body.error());
  const auto parsed = parse_chat(*body, model.limits());
  if (!parsed) return std::unexpected(parsed.error());
  const GenerationParameters& parameters = parsed->parameters;
  if (auto unknown = model.check_name(parameters.model)) return std::unexpected(*unknown);

  auto prompt = encode_chat(model, parsed->variables);
  if (!prompt) return std::unexpected(prompt.error());
  constexpr uint32_t kWhatTheContextLeaves = std::numeric_limits<uint32_t>::max();
  auto requests = make_requests(parameters, {std::move(*prompt)}, kWhatTheContextLeaves,
                                model.limits(), "messages", random_seed());
  if (!requests) return std::unexpected(requests.error());

  ChatFormat format(model.engine().tokenizer(), parameters.request.logprobs.has_value());
  ChoicesWriter writer(
      answer_head(model, "chatcmpl-", "chat.completion", "chat.completion.chunk", parameters.model),
      format, requests->size(), parameters.include_usage);
  answer(model, {std::move(*requests), parameters.choices, parameters.stream}, writer, request,
         response);
  return {};
}

}  // namespace

void post_chat_completions(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  const auto done = chat(model, request, response);
  if (!done) send_error(response, done.error());
}

}  // namespace lockstep
