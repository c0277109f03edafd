// Mixtures of experts on a GPU: which experts a token goes to, their products, and the sum of what
// they give. What experts compute has rows: a token has one for each expert that it goes to, those
// of an expert follow one another, in the batch's order, after those of the experts before it. So a
// block that multiplies an expert's weights finds all of its rows together, and none where there
// are none; the host never learns which those are. A row's arithmetic depends on its token alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/gating.h"
#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/gpu_product.h"

namespace lockstep {

// Experts that a token goes to, at most: a warp's lane for each.
inline constexpr size_t kGpuChosenMax = 32;

// An expert's rows that a block multiplies at once, at most.
inline constexpr size_t kGpuExpertRows = 64;

// Groups of experts, at most: a warp's lane for each.
inline constexpr size_t kGpuGroupsMax = 32;

// Chooses for each token the experts with the largest scores (of equal ones the first; a score that
// is no number counts as the largest), and their weights as `gating` says, all in f32. What they
// multiply is not its concern. A token's choices are ordered by expert.
//   value  = the score;  1 / (1 + e(-score));  root(max(score, 0) + ln1p(e(-|score|)));  or
//            e(score - the largest) / sum, of which lane i of 32 adds the powers of experts i,
//            i + 32 ..., ascending, from 0, and the lanes are added pairwise, 16, 8, 4, 2, 1 apart
//   choice = by the scores alone, or, with biases or groups, by value + bias. A group's sum is its
//            largest choice value, or that + the second largest; of equal ones the first is taken
//   weight = e(score - the largest chosen one's) / the sum of these, or the value, / the greater of
//            kLeastWeightSum and the chosen ones' sum where it is normalized; then * scale. Sums
//            are formed in the order of the choice
struct GpuRouting {
  GpuBatch batch;
  const float* scores = nullptr;  // [token][expert]
  size_t score_stride = 0;        // floats
  size_t expert_count = 0;
  size_t chosen_count = 0;          // of a token, 1 to kGpuChosenMax
  uint32_t* chosen = nullptr;       // [token][chosen_count]: the experts
  float* weights = nullptr;         // [token][chosen_count]
  uint32_t* choice_rows = nullptr;  // [token][chosen_count]: the row of each
  uint32_t* row_begin = nullptr;    // [expert], and the end of the last one's
  uint32_t* row_tokens = nullptr;   // [row]
  unsigned grid_rows = 1;           // blocks that share the tokens
  Gating gating = {};               // of at most kGpuGroupsMax groups
  const float* bias = nullptr;      // [expert], of the choice alone; or none
};
// Two kernels.
void gpu_route_tokens(void* stream, const GpuRouting& routing);

// Every expert's product with its rows.
struct GpuExpertProduct {
  // As for gpu_product(), with its order of operations; but rows take the place of tokens: what it
  // writes is by row, there are no norms behind it, and token_count and token_begin mean nothing. A
  // block multiplies 8, 16 or 64 rows at once, as token_limit says. The parts' matrices are the
  // first expert's.
  GpuProduct product;
  size_t matrix_stride_bytes[kGpuProductParts] = {};  // from an expert's matrix to the next one's
  // Consecutive experts that share a matrix, of each part.
  unsigned sharing[kGpuProductParts] = {1, 1, 1};
  size_t expert_count = 0;
  const uint32_t* row_begin = nullptr;  // GpuRouting's
  // Whose input and norm's factor a row has: GpuRouting's. None: they are by row as well.
  const uint32_t* row_tokens = nullptr;
  // With few tokens most experts have no rows: blocks are launched for each of so many choices
  // instead of for each expert, at least as many as there are, and those of an expert's first row
  // take the expert. 0: for each expert. A matter of speed alone.
  size_t choice_count = 0;
  const uint32_t* chosen = nullptr;       // GpuRouting's, as well as ...
  const uint32_t* choice_rows = nullptr;  // ... this; both are read where choices are counted
};
// One kernel per run of parts of one format.
void gpu_expert_product(void* stream, const GpuExpertProduct& experts);

// output[t][i] = the sum, over a token's choices in their order, of fma(weight, products[row][i],
// the sum so far), which begins with 0, or with what `output` held; the product * the expert's
// scale + its bias where there are some, and without weights the sum of the products. Then the
// norms as gpu_product() forms them.
struct GpuExpertSum {
  GpuBatch batch;
  const float* products = nullptr;  // [row]
  size_t product_stride = 0;        // floats
  const float* weights = nullptr;   // GpuRouting's, or none
  const uint32_t* choice_rows = nullptr;
  size_t chosen_count = 0;
  size_t columns = 0;
  float* output = nullptr;  // [token]
  size_t output_stride = 0;
  bool accumulate = false;
  size_t norm_count = 0;
  GpuNormOutput norms[kGpuProductNorms] = {};
  unsigned grid_rows = 1;            // blocks that share the tokens
  const float* biases = nullptr;     // of expert 0; or none
  size_t bias_stride = 0;            // floats, from an expert's to the next one's
  const float* scales = nullptr;     // [expert]: of its matrix; or none
  const uint32_t* chosen = nullptr;  // GpuRouting's, with biases or scales
};
void gpu_sum_experts(void* stream, const GpuExpertSum& sum);

}  // namespace lockstep
