// POST /apply-template: the prompt that the chat template makes of a conversation, as text.
#include "server/api/common/chat_turns.h"
#include "server/api/common/prepare_request.h"
#include "server/api/endpoints.h"

namespace lockstep {
namespace {

ApiResult<ChatPrompt> render(const ServedModel& model, const HttpRequest& request) {
  if (auto unready = model.check_ready()) return std::unexpected(*unready);
  const auto body = parse_body(request);
  if (!body) return std::unexpected(body.error());
  auto chat = parse_chat(*body, model.limits());
  if (!chat) return std::unexpected(chat.error());
  if (auto unknown = model.resolve_name(chat->parameters.model)) return std::unexpected(*unknown);
  return encode_chat_turn(model, *chat, "messages");
}

}  // namespace

void post_apply_template(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  auto lease = KeyLease::enter(model, request, response);
  if (!lease) return send_error(response, lease.error());
  lease->show(response);
  const auto prompt =
      prepare_request(model, request, *lease, [&] { return render(model, request); });
  lease->end();
  if (!prompt) return send_error(response, prompt.error());
  const Json body = {{"prompt", prompt->text}, {"count", prompt->tokens.size()}};
  response.send(200, "application/json", to_text(body));
}

}  // namespace lockstep
