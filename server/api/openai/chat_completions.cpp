// POST /v1/chat/completions and /v1/chat/completions/render.
#include <utility>

#include "server/api/common/answer.h"
#include "server/api/common/chat_request.h"
#include "server/api/common/prepare_request.h"
#include "server/api/openai/chat_format.h"
#include "server/api/openai/choices.h"
#include "server/api/openai/completion_request.h"
#include "server/api/openai/endpoints.h"

namespace lockstep {
namespace {

constexpr std::string_view kChatIdPrefix = "chatcmpl-";

// The parts of a request that are kept while its answer is made: neither its body nor its messages.
struct PreparedChat {
  AnswerPlan plan;
  TurnRules rules;
  bool stream = false;
  bool logprobs = false;
  bool include_usage = false;
  std::string name;  // of the model, as the request has it
};

ApiResult<ChatRequest> parse(const ServedModel& model, const HttpRequest& request) {
  const auto body = read_body(model, request);
  if (!body) return std::unexpected(body.error());
  auto chat = parse_chat(*body, model.limits());
  if (!chat) return chat;
  if (auto unknown = model.resolve_name(chat->parameters.model)) return std::unexpected(*unknown);
  return chat;
}

ApiResult<PreparedChat> prepare_chat(const ServedModel& model, const HttpRequest& request) {
  auto chat = parse(model, request);
  if (!chat) return std::unexpected(chat.error());
  const GenerationParameters& parameters = chat->parameters;
  PreparedChat prepared{.plan = {.requests = {}, .choices = parameters.choices},
                        .rules = {},
                        .stream = parameters.stream,
                        .logprobs = parameters.request.logprobs.has_value(),
                        .include_usage = parameters.include_usage,
                        .name = *parameters.model};
  auto turns = make_chat_turns(model, std::move(*chat), "messages");
  if (!turns) return std::unexpected(turns.error());
  prepared.plan.requests = std::move(turns->requests);
  prepared.plan.slot = turns->slot;
  prepared.plan.reasoning = ReasoningCount(turns->rules);
  prepared.plan.constraint = std::move(turns->constraint);
  prepared.rules = std::move(turns->rules);
  return prepared;
}

ApiResult<std::string> render_chat(const ServedModel& model, const HttpRequest& request) {
  const auto prepared = prepare_chat(model, request);
  if (!prepared) return std::unexpected(prepared.error());
  auto texts = render_prompts(model, prepared->plan, kChatIdPrefix);
  if (!texts) return std::unexpected(texts.error());
  return std::move(texts->front());
}

}  // namespace

ApiResult<void> post_chat_completions(Call& call) {
  auto prepared = prepare_request(call, prepare_chat);
  if (!prepared) return std::unexpected(prepared.error());
  AnswerPlan& plan = prepared->plan;
  ChatFormat format(call.model.engine().tokenizer(), prepared->logprobs,
                    std::move(prepared->rules));
  AnswerHead head = answer_head(call.model, kChatIdPrefix, "chat.completion",
                                "chat.completion.chunk", prepared->name);
  if (!prepared->stream) {
    ChoicesBody writer(std::move(head), format);
    return answer_whole(call, std::move(plan), writer);
  }
  ChoicesStream writer(std::move(head), format, plan.requests.size(), prepared->include_usage);
  return answer_stream(call, std::move(plan), writer);
}

ApiResult<void> post_chat_completions_render(Call& call) {
  return answer_prepared(call, render_chat);
}

}  // namespace lockstep
