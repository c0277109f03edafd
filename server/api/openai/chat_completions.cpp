// POST /v1/chat/completions.
#include <utility>

#include "server/api/common/answer.h"
#include "server/api/common/chat_turns.h"
#include "server/api/common/prepare_request.h"
#include "server/api/endpoints.h"
#include "server/api/openai/chat_format.h"

namespace lockstep {
namespace {

// What is left of a request while its answer is made: neither its body nor its messages.
struct Prepared {
  AnswerPlan plan;
  TurnRules rules;
  bool logprobs = false;
  bool include_usage = false;
  std::string name;  // of the model, as the request has it
};

ApiResult<ChatRequest> parse(const ServedModel& model, const HttpRequest& request) {
  if (auto unready = model.check_ready()) return std::unexpected(*unready);
  const auto body = parse_body(request);
  if (!body) return std::unexpected(body.error());
  auto chat = parse_chat(*body, model.limits());
  if (!chat) return chat;
  if (auto unknown = model.resolve_name(chat->parameters.model)) return std::unexpected(*unknown);
  return chat;
}

ApiResult<Prepared> prepare(const ServedModel& model, const HttpRequest& request) {
  auto chat = parse(model, request);
  if (!chat) return std::unexpected(chat.error());
  const GenerationParameters& parameters = chat->parameters;
  Prepared prepared{.plan = {{}, parameters.choices, parameters.stream},
                    .rules = {},
                    .logprobs = parameters.request.logprobs.has_value(),
                    .include_usage = parameters.include_usage,
                    .name = *parameters.model};
  auto turns = make_chat_turns(model, std::move(*chat), "messages");
  if (!turns) return std::unexpected(turns.error());
  prepared.plan.requests = std::move(turns->requests);
  prepared.plan.thoughts = ThoughtCount(turns->rules);
  prepared.plan.constraint = std::move(turns->constraint);
  prepared.rules = std::move(turns->rules);
  return prepared;
}

ApiResult<void> chat(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  auto lease = KeyLease::enter(model, request, response);
  if (!lease) return std::unexpected(lease.error());
  auto prepared = prepare_request(model, request, *lease, [&] { return prepare(model, request); });
  if (!prepared) return std::unexpected(prepared.error());
  ChatFormat format(model.engine().tokenizer(), prepared->logprobs, std::move(prepared->rules));
  ChoicesWriter writer(
      answer_head(model, "chatcmpl-", "chat.completion", "chat.completion.chunk", prepared->name),
      format, prepared->plan.requests.size(), prepared->include_usage);
  answer(model, *lease, std::move(prepared->plan), writer, request, response);
  return {};
}

}  // namespace

void post_chat_completions(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  const auto done = chat(model, request, response);
  if (!done) send_error(response, done.error());
}

}  // namespace lockstep
