// Sums of GPU ranks that travel by NCCL: the bits of gpu_all_reduce(), on every rank, in every run
// and for any number of rows, so that a pass may take either way for each of its sums.
//
// Between two ranks a sum has one order only: NCCL's all-reduce forms it, and it is added to the
// output. Between more, NCCL's order depends on where in the message an element lies, and so on the
// tokens beside it. There NCCL carries and the ranks add: each gets its part of every rank's
// partial, adds them in order of rank to its part of the output, and sends that to all others. The
// bytes are those of an all-reduce in a ring: 2 * (ranks - 1) / ranks of the message.
#pragma once

#include <cstddef>
#include <span>

#include "engine/base/range.h"
#include "engine/collectives/gpu_all_reduce.h"
#include "engine/collectives/nccl.h"

namespace lockstep {

// How a rank reaches the others.
struct GpuNcclLink {
  NcclRanks* ranks = nullptr;
  size_t rank = 0;
  size_t rank_count = 2;
  float* received = nullptr;  // this rank's own: gpu_nccl_received_floats()
};

// The floats of memory for what a rank receives of a message of `floats`, 16-byte aligned.
size_t gpu_nccl_received_floats(size_t rank_count, size_t floats);

// As gpu_all_reduce(). All ranks contribute; the strides of `partial` and `output` are equal, and
// what lies between the columns is summed as well. Failures are told by the ranks' check(). With
// bf16 partials are rounded, but travel as f32.
void nccl_all_reduce(void* stream, const GpuAllReduce& sum, const GpuNcclLink& link,
                     const GpuCollectives& collectives);

// Each of the values is -0 on all ranks but one; afterwards all have that one's bits.
void nccl_join(void* stream, float* values, size_t count, const GpuNcclLink& link,
               const GpuCollectives& collectives);

// Brings columns of rows to rank 0: a rank r has `columns[r]` of each row, in their place, and rank
// 0 gets those of all others there. Elsewhere nothing is written. `stride`: of the rows, in floats.
void nccl_gather_columns(void* stream, float* rows, size_t stride, size_t row_count,
                         std::span<const Range> columns, const GpuNcclLink& link);

// The bytes that one rank sends for a message of `floats`.
size_t nccl_sent_bytes(const GpuNcclLink& link, size_t floats);

}  // namespace lockstep
