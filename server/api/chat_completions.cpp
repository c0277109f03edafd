// POST /v1/chat/completions.
#include <utility>

#include "server/api/answer.h"
#include "server/api/chat_format.h"
#include "server/api/chat_turns.h"
#include "server/api/endpoints.h"

namespace lockstep {
namespace {

ApiResult<void> chat(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  if (auto unready = model.check_ready()) return std::unexpected(*unready);
  const auto body = parse_body(request);
  if (!body) return std::unexpected(body.error());
  auto parsed = parse_chat(*body, model.limits());
  if (!parsed) return std::unexpected(parsed.error());
  const GenerationParameters parameters = parsed->parameters;
  if (auto unknown = model.check_name(parameters.model)) return std::unexpected(*unknown);
  auto turns = make_chat_turns(model, std::move(*parsed), "messages");
  if (!turns) return std::unexpected(turns.error());

  ChatFormat format(model.engine().tokenizer(), parameters.request.logprobs.has_value(),
                    std::move(turns->rules));
  ChoicesWriter writer(
      answer_head(model, "chatcmpl-", "chat.completion", "chat.completion.chunk", parameters.model),
      format, turns->requests.size(), parameters.include_usage);
  answer(model, {std::move(turns->requests), parameters.choices, parameters.stream}, writer,
         request, response);
  return {};
}

}  // namespace

void post_chat_completions(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  const auto done = chat(model, request, response);
  if (!done) send_error(response, done.error());
}

}  // namespace lockstep
