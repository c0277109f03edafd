// How ranks of one process exchange: through copies of a buffer in each rank's exchange arena.
// Called by workers during a pass: no allocation, lock or system call. Nothing here waits, but for
// all_reduce() with bf16: the caller's barrier over all ranks makes what was written visible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/machine/barrier.h"

namespace lockstep {

// The other ranks' copies of a buffer. The exchange arenas of all ranks of a process have one
// layout: a buffer's copy on another rank is as far from this rank's as the arenas are.
struct Peers {
  size_t rank = 0;                        // this one
  std::vector<std::ptrdiff_t> distances;  // by rank, bytes from this rank's arena to that one's
  // There are ranks of other processes as well, which get what is pushed when all ranks have met.
  bool has_others = false;
};

// The object `distance` bytes from `own`, in another arena.
template <typename T>
T* at_distance(T* own, std::ptrdiff_t distance) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(own) + static_cast<uintptr_t>(distance));
}

// all_gather, as each worker's part of it: what this worker has computed into its own rank's copy
// is pushed into every other's. `row_count` rows of `row_bytes`, `stride_bytes` apart. Returns the
// bytes sent.
size_t push_rows(const Peers& peers, const void* own, size_t stride_bytes, size_t row_count,
                 size_t row_bytes);

// all_reduce: output[row][column] += sum over the contributors, in order of rank, of their
// partial[row][column]. The sum begins with the first contributor's value. One rank forms it, adds
// it once to its own output and sends the others the result: after the next barrier over all ranks
// they all have the same bits, however many workers there are. Which rank does so depends on the
// column and on the number of columns and ranks. So outputs may differ before (of GPUs and
// processors they do where each has rounded a value that all compute), and still no element
// depends on which rows are summed with its own. `partial` and `output` lie in exchange arenas. All
// partials are complete and visible; they may be written again after that barrier.
struct AllReduce {
  const float* partial = nullptr;
  size_t partial_stride = 0;  // floats
  float* output = nullptr;
  size_t output_stride = 0;
  size_t row_count = 0;
  size_t column_count = 0;
  std::span<const size_t> contributors;  // ranks, ascending

  // In an exchange arena, row_count * column_count each; null: everything travels as f32. With
  // them, half the bytes travel: every partial is rounded to bf16 (nearest even), the sum of those
  // is formed in f32, is rounded to bf16 again, and every rank adds that to its own output. Both
  // may be used for the next sum right after the next barrier over all ranks.
  uint16_t* bf16_partial = nullptr;
  uint16_t* bf16_sum = nullptr;
};

// Called by every worker of every rank. Returns the bytes that this worker has read from other
// ranks or sent to them. With bf16 it passes the barrier over all ranks twice, else never.
size_t all_reduce(const AllReduce& sum, const Peers& peers, Barrier& barrier, size_t worker,
                  size_t worker_count);

}  // namespace lockstep
