// Loops over a row of logits, one row of this table for each width of vectors that they are
// compiled for. The operations and their order are the same in all (exponential.h), so are the
// bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace lockstep {

// The tokens of a block that may weigh something.
struct BlockCut {
  float logit = -std::numeric_limits<float>::infinity();  // those with more, and with this one ...
  int32_t last_equal = std::numeric_limits<int32_t>::max();  // ... up to this place in the block
  float weight_min = 0;                                      // the others weigh 0
};

struct RowLoops {
  // False for NaN and infinities.
  bool (*all_finite)(const float* numbers, size_t count);
  // False for NaN and infinity; minus infinity is a logit of what cannot be picked.
  bool (*all_usable)(const float* logits, size_t count);
  // max_in_lanes()
  float (*greatest)(const float* logits, size_t count);
  // Writes the weights exp((logit - logit_max) * inverse_temperature) of a block and returns
  // sum_in_lanes() of them. No logit that is within the cut is greater than logit_max.
  double (*weigh)(const float* logits, size_t count, float logit_max, float inverse_temperature,
                  const BlockCut& cut, float* weights);
};

const RowLoops& narrow_row_loops();  // any processor
const RowLoops& avx2_row_loops();
const RowLoops& avx512_row_loops();

// The widest that this processor has. Any thread.
const RowLoops& row_loops();

}  // namespace lockstep
