// How ranks of one process exchange: through copies of a buffer in each rank's exchange arena.
// Called by workers during a pass: no allocation, lock or system call. Nothing here waits, but for
// all_reduce(): the caller's barrier over all ranks makes what was written visible.
#pragma once

#include <cstddef>
#include <span>

#include "engine/collectives/peers.h"
#include "engine/machine/barrier.h"

namespace lockstep {

// all_gather, as each worker's part of it: what this worker has computed into its own rank's copy
// is pushed into every other's. `row_count` rows of `row_bytes`, `stride_bytes` apart. Returns the
// bytes sent.
size_t push_rows(const Peers& peers, const void* own, size_t stride_bytes, size_t row_count,
                 size_t row_bytes);

// all_reduce: output[row][column] += sum over the contributors, in order of rank, of their
// partial[row][column]; the same bits on every rank. `partial` and `output` lie in exchange arenas.
// All partials are complete and visible; `output` is equal on all ranks before, and after the next
// barrier over all ranks. A partial may be written again after the second such barrier.
struct AllReduce {
  const float* partial = nullptr;
  size_t partial_stride = 0;  // floats
  float* output = nullptr;
  size_t output_stride = 0;
  size_t row_count = 0;
  size_t column_count = 0;
  std::span<const size_t> contributors;  // ranks, ascending
};

// Called by every worker of every rank; may meet at the barrier over all ranks in between.
void all_reduce(const AllReduce& sum, const Peers& peers, Barrier& barrier, size_t worker,
                size_t worker_count);

}  // namespace lockstep
