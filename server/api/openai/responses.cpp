// POST /v1/responses, stateless.
#include <string>
#include <utility>

#include "server/api/common/chat_turns.h"
#include "server/api/common/prepare_request.h"
#include "server/api/endpoints.h"
#include "server/api/openai/responses_request.h"
#include "server/api/openai/responses_writer.h"

namespace lockstep {
namespace {

ApiResult<ResponsesRequest> parse(const ServedModel& model, const HttpRequest& request) {
  if (auto unready = model.check_ready()) return std::unexpected(*unready);
  const auto body = parse_body(request);
  if (!body) return std::unexpected(body.error());
  auto parsed = parse_responses(*body, model.limits());
  if (!parsed) return parsed;
  if (auto unknown = model.resolve_name(parsed->chat.parameters.model)) {
    return std::unexpected(*unknown);
  }
  return parsed;
}

// What is left of a request while its answer is made.
struct Prepared {
  ChatTurns turns;
  std::string echoed;
  std::string name;  // of the model, as the request has it
  bool stream = false;
};

ApiResult<Prepared> prepare(const ServedModel& model, const HttpRequest& request) {
  auto parsed = parse(model, request);
  if (!parsed) return std::unexpected(parsed.error());
  std::string name = *parsed->chat.parameters.model;
  const bool stream = parsed->chat.parameters.stream;
  auto turns = make_chat_turns(model, std::move(parsed->chat), "input");
  if (!turns) return std::unexpected(turns.error());
  return Prepared{std::move(*turns), std::move(parsed->echoed), std::move(name), stream};
}

ApiResult<void> respond(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  auto lease = KeyLease::enter(model, request, response);
  if (!lease) return std::unexpected(lease.error());
  auto prepared = prepare_request(model, request, *lease, [&] { return prepare(model, request); });
  if (!prepared) return std::unexpected(prepared.error());
  ChatTurns& turns = prepared->turns;
  AnswerPlan plan{.requests = std::move(turns.requests),
                  .stream = prepared->stream,
                  .thoughts = ThoughtCount(turns.rules),
                  .constraint = std::move(turns.constraint)};
  ResponsesWriter writer(std::move(turns.rules), prepared->name, std::move(prepared->echoed));
  answer(model, *lease, std::move(plan), writer, request, response);
  return {};
}

}  // namespace

void post_responses(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  const auto done = respond(model, request, response);
  if (!done) send_error(response, done.error());
}

}  // namespace lockstep
