// How a sum is dealt out to blocks and threads: equally on all ranks, by its shape alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/collectives/gpu_all_reduce.h"

namespace lockstep {

constexpr unsigned kGpuSumThreads = 256;  // of a block
// Rows are cut into units of four columns: what a thread handles.
constexpr unsigned kGpuUnitFloats = 4;
// Units are dealt out in chunks, whose squares a norm sums: eight threads of a warp have one. So a
// row's last units may have fewer columns, or none.
constexpr unsigned kGpuChunkColumns = 32;
constexpr unsigned kGpuChunkUnits = kGpuChunkColumns / kGpuUnitFloats;

// The kernel's argument. Blocks take pieces in turn, each in a round of its channel; or, in two
// shots, in two rounds, where each rank adds up an equal share of the piece.
struct GpuSumLaunch {
  const float* partial = nullptr;
  size_t partial_stride = 0;
  float* output = nullptr;
  size_t output_stride = 0;
  unsigned column_count = 0;
  unsigned units_per_row = 0;
  unsigned unit_count = 0;
  const uint32_t* row_limit = nullptr;
  unsigned piece_units = 0;
  unsigned block_count = 0;      // at most the peers' channel_count; 0: nothing to do
  uint32_t contributors = 0;     // a bit per rank
  bool partial_aligned = false;  // every whole unit to 16 bytes
  bool output_aligned = false;
  bool norms_aligned = false;  // of all norms the weights and the rows
  unsigned norm_count = 0;
  GpuNormOutput norms[kGpuProductNorms] = {};
};

// The bytes that one rank sends to others for a sum, if it contributes.
size_t gpu_sum_sent_bytes(const GpuAllReduce& sum, size_t rank_count);

// CHECKs both arguments.
GpuSumLaunch gpu_sum_launch(const GpuAllReduce& sum, const GpuPeers& peers);
void check_gpu_peers(const GpuPeers& peers);

// Threads take units in turn.
struct GpuPartSumLaunch {
  unsigned block_count = 0;  // 0: nothing to do
  bool aligned = false;      // every whole unit to 16 bytes, of the parts and of the output
};

// CHECKs the argument.
GpuPartSumLaunch gpu_part_sum_launch(const GpuPartSum& sum);

}  // namespace lockstep
