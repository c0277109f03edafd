// How GPUs that are ranks of one process exchange: over one another's memory (NVLink, PCIe peer
// access), by kernels on each rank's own stream. Every rank enqueues the same calls with the same
// shapes in the same order; no host thread waits here, nothing is allocated, and what is enqueued
// may be captured into a graph and replayed: the count of rounds lies in the GPUs' memory.
//
// Made for nvcc as well: C++20.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/collectives/gpu_mailbox.h"
#include "engine/kernels/gpu_product.h"

namespace lockstep {

// One rank's view of all of them. Plain values: it is an argument of kernels.
//
// The blocks of a launch wait for those of the other ranks, so all of them must be resident: there
// are never more than `channel_count` (of 256 threads), and no kernel that waits for this rank may
// keep the GPU busy. A GPU that is one rank holds kGpuChannelsMax; simulated ranks on one GPU
// must share what it has.
struct GpuPeers {
  size_t rank = 0;
  size_t rank_count = 1;
  size_t channel_count = kGpuChannelsMax;  // the same on all ranks
  // By rank, each in that rank's memory and addressed as this rank's GPU does; aligned to 128
  // bytes; gpu_mailbox_bytes() of zeros before any rank's first call.
  std::byte* mailboxes[kGpuRanksMax] = {};
  // This rank's word in pinned host memory, 0 at first. See missing_rank().
  uint32_t* failure = nullptr;
  // Another one there: how long this rank's exchanges have taken so far, waiting for others
  // included, by the GPU's clock. Null: nobody asks.
  uint64_t* spent_ns = nullptr;
  // Another one there, 0 at first: changes every millisecond or so while this rank waits for
  // another. See awaited_rank(). Null: nobody asks.
  uint32_t* waiting = nullptr;
  // How long a block waits for another rank, by the GPU's clock.
  uint64_t deadline_ns = 5'000'000'000;
};

// output[row][column] += sum over the contributors, in order of rank, of their
// partial[row][column].
//
// Arithmetic: with f32 the sum begins with the first contributor's value, one addition in f32 per
// further contributor, and one that adds it to the output: the bits of all_reduce() in
// shared_memory.h with f32 (but for the payload of NaNs). With bf16 each partial, this rank's own
// as well, is rounded once to bf16 (nearest even); then the same: the sum stays f32 and is not
// rounded again, as shared_memory.h does it for its second journey. Each element's order is fixed:
// the same bits on every rank, in every run, and for any shape, shots, channel_count and
// neighbours.
struct GpuAllReduce {
  const float* partial = nullptr;  // may be null where this rank does not contribute
  size_t partial_stride = 0;       // floats
  float* output = nullptr;         // equal on all ranks before and after
  size_t output_stride = 0;
  size_t row_count = 0;
  size_t column_count = 0;
  // In the rank's memory, of one value on all ranks: rows from this one on are left out. None: no
  // row is.
  const uint32_t* row_limit = nullptr;
  std::span<const size_t> contributors;  // ranks, ascending
  bool bf16 = false;                     // partials travel as bf16
  bool two_shots = false;                // the same on all ranks
  // The norms that read the sum, of all its columns, each rank's own: what gpu_norm_rows() would
  // make of the output, to the bit. By gpu_all_reduce() alone. What they store lies nowhere in
  // `partial`.
  size_t norm_count = 0;
  GpuNormOutput norms[kGpuProductNorms] = {};
};

// In one shot every rank sends its partial to all others and adds up all that it has got. In two,
// every rank is sent its share of the others' partials, adds it up and sends what its output has
// become there, as f32, to all others: of f32 2 / rank_count of the bytes, but two barriers that
// follow one another, however small the sum.
// `stream`: a cudaStream_t of the rank's GPU, which is the current one. `partial` may be written
// again by what follows on the stream.
void gpu_all_reduce(void* stream, const GpuAllReduce& sum, const GpuPeers& peers);

// A barrier on the streams: what follows runs after all ranks have come, and sees what they had
// written before, into their own memory or another's.
void gpu_meet(void* stream, const GpuPeers& peers);

// A sum by the rank itself of parts that others have sent it: output[i] becomes the sum over the
// parts, in their order, of part[i], which is added to output[i] once where `add` says so. The
// arithmetic of GpuAllReduce; with bf16 each part is rounded when it is read.
struct GpuPartSum {
  const float* parts[kGpuRanksMax] = {};
  size_t part_count = 0;
  float* output = nullptr;  // may be one of the parts
  size_t count = 0;         // floats
  bool add = true;
  bool bf16 = false;
};
void gpu_sum_parts(void* stream, const GpuPartSum& sum);

// The three as a table, like GpuKernels.
struct GpuCollectives {
  void (*all_reduce)(void* stream, const GpuAllReduce& sum, const GpuPeers& peers);
  void (*meet)(void* stream, const GpuPeers& peers);
  void (*sum_parts)(void* stream, const GpuPartSum& sum);
};

// In builds with CUDA alone.
const GpuCollectives& cuda_collectives();

}  // namespace lockstep
