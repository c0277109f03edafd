// POST /v1/rerank: the request's body and the answer's, in the shape that Jina, Cohere and
// llama-server share.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/common/answer_writer.h"
#include "server/api/common/generation_parameters.h"

namespace lockstep {

// The body of POST /v1/rerank.
struct RerankRequest {
  std::optional<std::string> model;
  std::string query;
  std::vector<std::string> documents;  // 1 to 2048
  size_t top_n = 0;                    // how many of them the answer has; at most all
  bool return_documents = false;
  bool normalize = false;  // the relevances are from 0 to 1
  Request request;         // priority, deadline_seconds and cache_salt
};

ApiResult<RerankRequest> parse_rerank(const Json& body, const RequestLimits& limits);

// A document's relevance by the scores of the head's classes. Of one class it is the score as it
// is, whatever its range, as llama-server has it, or normalized the logistic function of it, for
// which such heads are trained; of several the softmax's part of the first.
float relevance(const std::vector<float>& scores, bool normalize);

// The answer: the documents by relevance, the most relevant first, of equal ones the first.
class RerankBody final : public BodyWriter {
 public:
  // `name`: of the model, as the request has it. `documents`: to be returned; or none.
  RerankBody(std::string name, size_t top_n, bool normalize, std::vector<std::string> documents)
      : name_(std::move(name)),
        top_n_(top_n),
        normalize_(normalize),
        documents_(std::move(documents)) {}

  std::string body(const std::vector<Output>& whole, const AnswerUsage& usage) override;

 private:
  std::string name_;
  size_t top_n_;
  bool normalize_;
  std::vector<std::string> documents_;
};

}  // namespace lockstep
