// The tokens that an answer has come to.
#pragma once

#include <cstdint>

namespace lockstep {

struct AnswerUsage {
  uint64_t prompt_tokens = 0;  // each prompt counted once
  uint64_t cached_tokens = 0;  // of them
  uint64_t generated_tokens = 0;
  uint64_t thought_tokens = 0;  // of them
};

}  // namespace lockstep
