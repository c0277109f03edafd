// POST /v1/embeddings.
#include <string>
#include <utility>
#include <vector>

#include "server/api/common/prepare_request.h"
#include "server/api/endpoints.h"
#include "server/api/openai/embedding_request.h"
#include "server/api/openai/embeddings_writer.h"

namespace lockstep {
namespace {

ApiResult<EmbeddingRequest> parse(const ServedModel& model, const RequestLimits& limits,
                                  const HttpRequest& request) {
  if (auto unready = model.check_ready()) return std::unexpected(*unready);
  const auto body = parse_body(request);
  if (!body) return std::unexpected(body.error());
  const ModelInfo& info = model.engine().model();
  auto asked = parse_embedding(*body, limits, info.embedding_width);
  if (!asked) return asked;
  if (auto unknown = model.resolve_name(asked->model)) return std::unexpected(*unknown);
  if (info.pooling.empty()) {
    return std::unexpected(
        bad_parameter("model", "This model gives no embeddings: " + info.embedding_refusal));
  }
  return asked;
}

// What is left of a request while its answer is made.
struct Prepared {
  std::vector<Request> requests;
  std::string name;  // of the model, as the request has it
  bool base64 = false;
};

ApiResult<Prepared> prepare(const ServedModel& model, const HttpRequest& request) {
  const RequestLimits limits = model.limits();
  const auto asked = parse(model, limits, request);
  if (!asked) return std::unexpected(asked.error());
  auto requests = make_embedding_requests(*asked, model.engine().tokenizer(), limits,
                                          model.engine().model().embedding_width);
  if (!requests) return std::unexpected(requests.error());
  return Prepared{std::move(*requests), *asked->model, asked->base64};
}

ApiResult<void> embed(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  auto lease = KeyLease::enter(model, request, response);
  if (!lease) return std::unexpected(lease.error());
  auto prepared = prepare_request(model, request, *lease, [&] { return prepare(model, request); });
  if (!prepared) return std::unexpected(prepared.error());
  EmbeddingsWriter writer(std::move(prepared->name), prepared->base64);
  answer(model, *lease, {.requests = std::move(prepared->requests)}, writer, request, response);
  return {};
}

}  // namespace

void post_embeddings(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  const auto done = embed(model, request, response);
  if (!done) send_error(response, done.error());
}

}  // namespace lockstep
