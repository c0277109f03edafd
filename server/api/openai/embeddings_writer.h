// Words the answer of POST /v1/embeddings.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/api/common/answer.h"

namespace lockstep {

class EmbeddingsWriter final : public AnswerWriter {
 public:
  // `name`: of the model, as the request has it.
  EmbeddingsWriter(std::string name, bool base64) : name_(std::move(name)), base64_(base64) {}

  std::string body_text(const std::vector<Output>& whole, const AnswerUsage& usage) override;

 private:
  std::string name_;
  bool base64_;
};

// The numbers as little-endian f32, in base64 (RFC 4648, padded).
std::string floats_in_base64(std::span<const float> numbers);

}  // namespace lockstep
