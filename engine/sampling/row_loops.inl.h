// The loops of row_loops.h, for a source file that is compiled for one width of vectors.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "engine/sampling/exponential.h"
#include "engine/sampling/row_loops.h"

namespace lockstep {
namespace {

struct Loops {
  static bool all_finite(const float* numbers, size_t count) {
    uint32_t unusable = 0;
    for (size_t index = 0; index < count; ++index) {  // 1 for NaN, too
      unusable |= std::abs(numbers[index]) <= std::numeric_limits<float>::max() ? 0U : 1U;
    }
    return unusable == 0;
  }

  static bool all_usable(const float* logits, size_t count) {
    uint32_t unusable = 0;
    for (size_t index = 0; index < count; ++index) {  // likewise
      unusable |= logits[index] <= std::numeric_limits<float>::max() ? 0U : 1U;
    }
    return unusable == 0;
  }

  static float greatest(const float* logits, size_t count) { return max_in_lanes({logits, count}); }

  static double weigh(const float* logits, size_t count, float logit_max, float inverse,
                      const BlockCut& cut, float* weights) {
    const auto [cut_logit, last_equal, weight_min] = cut;
    for (int32_t index = 0; index < static_cast<int32_t>(count); ++index) {
      const float logit = logits[index];
      const float weight = exp_nonpositive((logit - logit_max) * inverse);
      const bool within = (logit > cut_logit) | ((logit == cut_logit) & (index <= last_equal));
      weights[index] = (within & (weight >= weight_min)) ? weight : 0.0F;
    }
    return sum_in_lanes({weights, count});
  }

  static constexpr RowLoops kRow = {all_finite, all_usable, greatest, weigh};
};

}  // namespace
}  // namespace lockstep
