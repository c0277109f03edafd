// POST /v1/embeddings: the request's body and the answer's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/api/common/answer_writer.h"
#include "server/api/openai/completion_request.h"

namespace lockstep {

// The body of POST /v1/embeddings.
struct EmbeddingRequest {
  std::optional<std::string> model;
  std::vector<Prompt> inputs;      // 1 to 2048, none empty
  bool base64 = false;             // each embedding as little-endian f32 in base64, not as numbers
  bool add_special_tokens = true;  // to inputs that are strings
  Request request;                 // normalizes, priority, deadline_seconds and cache_salt
};

// `width`: of the model's embeddings, the only one that `dimensions` may ask for.
ApiResult<EmbeddingRequest> parse_embedding(const Json& body, const RequestLimits& limits,
                                            uint32_t width);

// One engine request per input. 400, naming the input, for one without tokens or of more than the
// context; 400 with the numbers for more tokens than the limits allow, and for an answer of more
// than 32 MiB.
ApiResult<std::vector<Request>> make_embedding_requests(const EmbeddingRequest& asked,
                                                        const Tokenizer& tokenizer,
                                                        const RequestLimits& limits,
                                                        uint32_t width);

// The answer of POST /v1/embeddings.
class EmbeddingsBody final : public BodyWriter {
 public:
  // `name`: of the model, as the request has it.
  EmbeddingsBody(std::string name, bool base64) : name_(std::move(name)), base64_(base64) {}

  std::string body(const std::vector<Output>& whole, const AnswerUsage& usage) override;

 private:
  std::string name_;
  bool base64_;
};

// The numbers as little-endian f32, in base64 (RFC 4648, padded).
std::string floats_in_base64(std::span<const float> numbers);

}  // namespace lockstep
