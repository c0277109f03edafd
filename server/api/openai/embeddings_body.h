// The answer of POST /v1/embeddings.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/api/common/body_writer.h"

namespace lockstep {

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
