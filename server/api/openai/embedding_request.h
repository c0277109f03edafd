// The body of POST /v1/embeddings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/openai/completion_request.h"

namespace lockstep {

struct EmbeddingRequest {
  std::optional<std::string> model;
  std::vector<Prompt> inputs;      // 1 to 2048, none empty
  bool base64 = false;             // each embedding as little-endian f32 in base64, not as numbers
  bool add_special_tokens = true;  // to inputs that are strings
  Request request;                 // priority, deadline_seconds and cache_salt
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

}  // namespace lockstep
