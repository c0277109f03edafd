// POST /v1/messages and /v1/messages/count_tokens, for Anthropic's clients.
#include <utility>

#include "server/api/anthropic/messages_request.h"
#include "server/api/anthropic/messages_writer.h"
#include "server/api/common/chat_turns.h"
#include "server/api/common/prepare_request.h"
#include "server/api/endpoints.h"

namespace lockstep {
namespace {

ApiResult<ChatRequest> parse(const ServedModel& model, const HttpRequest& request,
                             bool counts_only) {
  if (auto unready = model.check_ready()) return std::unexpected(*unready);
  const auto body = parse_body(request);
  if (!body) return std::unexpected(body.error());
  auto chat = parse_messages(*body, model.limits(), counts_only);
  if (!chat) return chat;
  if (auto unknown = model.resolve_name(chat->parameters.model)) return std::unexpected(*unknown);
  return chat;
}

// What is left of a request while its answer is made.
struct Prepared {
  ChatTurns turns;
  std::string name;  // of the model, as the request has it
  bool stream = false;
  uint32_t max_tokens = 0;
};

ApiResult<Prepared> prepare(const ServedModel& model, const HttpRequest& request) {
  auto chat = parse(model, request, false);
  if (!chat) return std::unexpected(chat.error());
  Prepared prepared{{}, *chat->parameters.model, chat->parameters.stream, chat->default_max_tokens};
  auto turns = make_chat_turns(model, std::move(*chat), "messages");
  if (!turns) return std::unexpected(turns.error());
  prepared.turns = std::move(*turns);
  return prepared;
}

ApiResult<void> talk(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  auto lease = KeyLease::enter(model, request, response);
  if (!lease) return std::unexpected(lease.error());
  auto prepared = prepare_request(model, request, *lease, [&] { return prepare(model, request); });
  if (!prepared) return std::unexpected(prepared.error());
  ChatTurns& turns = prepared->turns;
  AnswerPlan plan{.requests = std::move(turns.requests),
                  .stream = prepared->stream,
                  .constraint = std::move(turns.constraint)};
  MessagesWriter writer(std::move(turns.rules), prepared->name, prepared->max_tokens);
  answer(model, *lease, std::move(plan), writer, request, response);
  return {};
}

// The length of the prompt, also of one that the context could not hold.
ApiResult<size_t> count(const ServedModel& model, const HttpRequest& request) {
  auto chat = parse(model, request, true);
  if (!chat) return std::unexpected(chat.error());
  const auto prompt = encode_chat_turn(model, *chat, "messages");
  if (!prompt) return std::unexpected(prompt.error());
  return prompt->tokens.size();
}

}  // namespace

void post_messages(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  const auto done = talk(model, request, response);
  if (!done) send_anthropic_error(response, done.error());
}

void post_count_tokens(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  auto lease = KeyLease::enter(model, request, response);
  if (!lease) return send_anthropic_error(response, lease.error());
  lease->show(response);
  const auto tokens =
      prepare_request(model, request, *lease, [&] { return count(model, request); });
  lease->end();
  if (!tokens) return send_anthropic_error(response, tokens.error());
  const Json body = {{"input_tokens", *tokens}};
  response.send(200, "application/json", to_text(body));
}

}  // namespace lockstep
