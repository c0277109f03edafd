// POST /v1/embeddings.
#include <string>
#include <utility>
#include <vector>

#include "server/api/common/answer.h"
#include "server/api/common/prepare_request.h"
#include "server/api/openai/embedding_request.h"
#include "server/api/openai/embeddings_body.h"
#include "server/api/openai/endpoints.h"

namespace lockstep {
namespace {

ApiResult<EmbeddingRequest> parse(const ServedModel& model, const RequestLimits& limits,
                                  const HttpRequest& request) {
  const auto body = read_body(model, request);
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
struct PreparedEmbedding {
  std::vector<Request> requests;
  std::string name;  // of the model, as the request has it
  bool base64 = false;
};

ApiResult<PreparedEmbedding> prepare_embedding(const ServedModel& model,
                                               const HttpRequest& request) {
  const RequestLimits limits = model.limits();
  const auto asked = parse(model, limits, request);
  if (!asked) return std::unexpected(asked.error());
  auto requests = make_embedding_requests(*asked, model.engine().tokenizer(), limits,
                                          model.engine().model().embedding_width);
  if (!requests) return std::unexpected(requests.error());
  return PreparedEmbedding{std::move(*requests), *asked->model, asked->base64};
}

}  // namespace

ApiResult<void> post_embeddings(Call& call) {
  auto prepared = prepare_request(call, prepare_embedding);
  if (!prepared) return std::unexpected(prepared.error());
  EmbeddingsBody writer(std::move(prepared->name), prepared->base64);
  return answer_whole(call, {.requests = std::move(prepared->requests)}, writer);
}

}  // namespace lockstep
