// The words of one choice of an answer.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/base/json_text.h"
#include "engine/engine.h"

namespace lockstep {

// Belongs to one HTTP request.
class ChoiceFormat {
 public:
  virtual ~ChoiceFormat() = default;

  // The choice before anything is generated, for a stream; null for none.
  virtual Json opening(size_t index) = 0;
  // The choices (in the JSON sense) that one output makes in a stream; may be none.
  virtual std::vector<Json> chunks(size_t index, const Output& output) = 0;
  // The choice that all outputs of a request make together.
  virtual Json choice(size_t index, const Output& whole) = 0;
};

}  // namespace lockstep
