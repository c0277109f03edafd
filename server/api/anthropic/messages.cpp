// POST /v1/messages and /v1/messages/count_tokens, for Anthropic's clients.
#include <string>
#include <utility>

#include "server/api/anthropic/endpoints.h"
#include "server/api/anthropic/messages_answer.h"
#include "server/api/common/answer.h"
#include "server/api/common/chat_request.h"
#include "server/api/common/prepare_request.h"

namespace lockstep {
namespace {

ApiResult<ChatRequest> parse(const ServedModel& model, const HttpRequest& request,
                             bool counts_only) {
  const auto body = read_body(model, request);
  if (!body) return std::unexpected(body.error());
  auto chat = parse_messages(*body, model.limits(), counts_only);
  if (!chat) return chat;
  if (auto unknown = model.resolve_name(chat->parameters.model)) return std::unexpected(*unknown);
  return chat;
}

// The parts of a request that are kept while its answer is made.
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

// The length of the prompt, also of one that the context could not hold.
ApiResult<std::string> count(const ServedModel& model, const HttpRequest& request) {
  auto chat = parse(model, request, true);
  if (!chat) return std::unexpected(chat.error());
  const auto prompt = encode_chat_turn(model, *chat, "messages");
  if (!prompt) return std::unexpected(prompt.error());
  return to_text({{"input_tokens", prompt->tokens.size()}});
}

}  // namespace

ApiResult<void> post_messages(Call& call) {
  auto prepared = prepare_request(call, prepare);
  if (!prepared) return std::unexpected(prepared.error());
  ChatTurns& turns = prepared->turns;
  AnswerPlan plan{.requests = std::move(turns.requests),
                  .slot = turns.slot,
                  .constraint = std::move(turns.constraint)};
  AnthropicHead head = anthropic_head(std::move(prepared->name), prepared->max_tokens);
  if (!prepared->stream) {
    MessagesBody writer(std::move(turns.rules), std::move(head));
    return answer_whole(call, std::move(plan), writer);
  }
  MessagesStream writer(std::move(turns.rules), std::move(head));
  return answer_stream(call, std::move(plan), writer);
}

ApiResult<void> post_count_tokens(Call& call) {
  return answer_prepared(call, count);
}

}  // namespace lockstep
