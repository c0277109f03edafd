// The words of a whole answer, in one dialect.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api/common/answer_usage.h"

namespace lockstep {

// Belongs to one HTTP request.
class BodyWriter {
 public:
  virtual ~BodyWriter() = default;

  // The JSON text of the answer; `whole` holds all outputs of each of the engine's requests.
  virtual std::string body(const std::vector<Output>& whole, const AnswerUsage& usage) = 0;
};

}  // namespace lockstep
