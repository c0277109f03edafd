// Rotary position embedding of one head, in place.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

enum class RotaryPairs : uint8_t {
  kInterleaved,  // (0,1) (2,3) ...: the "llama" family's files
  kHalves,       // (0,n/2) (1,n/2+1) ...: the "qwen" family's
};

// cosines and sines: dimensions / 2 values each, for this position.
void rotate(RotaryPairs pairs, const float* cosines, const float* sines, size_t dimensions,
            float* head);

}  // namespace lockstep
