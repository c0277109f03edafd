#include "engine/kernels/rotary.h"

namespace lockstep {
namespace {

// Turns the point (first, second) by an angle.
void rotate_pair(float cosine, float sine, float& first, float& second) {
  const float x = first;
  const float y = second;
  first = x * cosine - y * sine;
  second = x * sine + y * cosine;
}

}  // namespace

void rotate(RotaryPairs pairs, const float* cosines, const float* sines, size_t dimensions,
            float* head) {
  const size_t half = dimensions / 2;
  if (pairs == RotaryPairs::kInterleaved) {
    for (size_t i = 0; i < half; ++i) {
      rotate_pair(cosines[i], sines[i], head[2 * i], head[2 * i + 1]);
    }
  } else {
    for (size_t i = 0; i < half; ++i) {
      rotate_pair(cosines[i], sines[i], head[i], head[half + i]);
    }
  }
}

}  // namespace lockstep
