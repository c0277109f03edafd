// POST /apply-template: the prompt that the chat template makes of a conversation, as text.
#include <string>

#include "server/api/common/chat_turns.h"
#include "server/api/common/prepare_request.h"
#include "server/api/native/endpoints.h"
#include "server/api/openai/chat_completions_request.h"

namespace lockstep {
namespace {

ApiResult<std::string> render(const ServedModel& model, const HttpRequest& request) {
  const auto body = read_body(model, request);
  if (!body) return std::unexpected(body.error());
  auto chat = parse_chat(*body, model.limits());
  if (!chat) return std::unexpected(chat.error());
  if (auto unknown = model.resolve_name(chat->parameters.model)) return std::unexpected(*unknown);
  const auto prompt = encode_chat_turn(model, *chat, "messages");
  if (!prompt) return std::unexpected(prompt.error());
  return to_text({{"prompt", prompt->text}, {"count", prompt->tokens.size()}});
}

}  // namespace

ApiResult<void> post_apply_template(Call& call) {
  return answer_prepared(call, render);
}

}  // namespace lockstep
