// Drawing a token by its weight over a whole row of logits, on a GPU. Every number is formed as the
// host's sampler forms it (engine/sampling/sampler.cpp), operation by operation, so that the token
// is the one that the host would draw from the row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/checked_math.h"
#include "engine/kernels/gpu_batch.h"

namespace lockstep {

// Weights are summed per block of so many logits, in double: number i of a block goes to lane i mod
// 8, then the lanes are added in order. Then the blocks are.
inline constexpr size_t kGpuDrawBlock = 256;

constexpr size_t gpu_draw_blocks(size_t columns) {
  return divide_up<size_t>(columns, kGpuDrawBlock);
}

// The result of a row's draw; where none is wanted these two are left alone.
struct GpuDrawn {
  double sum;     // of all weights that are not cut
  int32_t token;  // at which the running sum of the weights exceeds uniform * sum
  int32_t pick;   // the row's in GpuDraw::picks, where there are any
};

struct GpuDraw {
  const uint32_t* row_count = nullptr;
  const GpuDrawRequest* requests = nullptr;  // [row]
  const float* logits = nullptr;             // [row], all finite; others give anything
  size_t stride = 0;                         // floats
  size_t columns = 0;
  const float* maxima = nullptr;  // [row], the greatest logit
  double* sums = nullptr;         // gpu_draw_blocks(columns) for each row, to work with
  // [row]: the likeliest token, in whose place the drawn one is put where a draw is wanted; or
  // none. In the device's memory, where the next pass finds it (GpuEmbedding::picks).
  uint32_t* picks = nullptr;
  GpuDrawn* drawn = nullptr;                // [row], of the device's memory or of pinned memory
  const uint32_t* result_offset = nullptr;  // as in GpuBatchCounts, of `drawn`; null: 0
  unsigned grid_rows = 1;                   // blocks that share the rows
};

// Launches it on `stream` (a cudaStream_t): two kernels. Can be captured into a graph.
void gpu_draw_tokens(void* stream, const GpuDraw& draw);

}  // namespace lockstep
