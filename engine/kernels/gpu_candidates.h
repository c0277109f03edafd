// The likeliest of a row's logits, found on a GPU: a sampler mostly needs no others, so that they
// alone are sent to the host. Which they are depends on the row alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/checked_math.h"

namespace lockstep {

inline constexpr size_t kGpuCandidates = 256;  // of a row

// The first tokens of one row of logits in the order of likelihood (the greater logit first, of
// equal ones the lower token), exactly. NaN counts as minus infinity, -0 becomes 0.
struct GpuCandidateRow {
  uint32_t count;       // kGpuCandidates, or all tokens where there are fewer
  uint32_t not_finite;  // how many of the row's logits are NaN or infinite
  float logits[kGpuCandidates];
  int32_t tokens[kGpuCandidates];
};

// Logits that one block looks through: what its threads can hold in registers.
inline constexpr size_t kGpuCandidateSegment = 8192;

// Words of memory that the search needs per row of so many logits.
constexpr size_t gpu_candidate_words(size_t columns) {
  return divide_up<size_t>(columns, kGpuCandidateSegment) * (2 * kGpuCandidates + 1);
}

struct GpuCandidates {
  const uint32_t* row_count = nullptr;  // which the kernel reads
  const float* logits = nullptr;        // [row], at least 1 and below 2^31 columns
  size_t stride = 0;                    // floats
  size_t columns = 0;
  uint32_t* words = nullptr;                // gpu_candidate_words(columns) for each row
  float* maxima = nullptr;                  // [row], the greatest logit; or none
  uint32_t* picks = nullptr;                // [row], the likeliest token; or none
  GpuCandidateRow* rows = nullptr;          // [row], of the device's memory or of pinned memory
  const uint32_t* result_offset = nullptr;  // as in GpuBatchCounts, of `rows`; null: 0
  unsigned grid_rows = 1;                   // blocks that share the rows
};

// Launches it on `stream` (a cudaStream_t): two kernels. Can be captured into a graph.
void gpu_find_candidates(void* stream, const GpuCandidates& find);

}  // namespace lockstep
