// The kernel of gpu_rows.h. Included after gpu_code.h.
#pragma once

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/kernels/gpu_rows.h"

namespace lockstep {
namespace {

constexpr unsigned kReadThreads = 256;
// The loads of a thread that are under way at once. With as many threads as a multiprocessor holds
// these are 128 KiB, several times what the largest bandwidth and a microsecond's latency come to.
// Not measured.
constexpr unsigned kReadsAtOnce = 4;
constexpr size_t kReadTurn = size_t{kReadsAtOnce} * kWarpThreads * sizeof(Words4);

// As weights are read, 16 bytes of a lane at a time that take no place in the first cache.
GPU_KERNEL_OF(kReadThreads) void read_memory(GpuRead read) {
  follow_launches();
  const size_t stretch = size_t{block_column()} * (kReadThreads / kWarpThreads) + warp_index();
  if (stretch >= read.bytes / kGpuReadStretch) return;
  const std::byte* place = read.memory + stretch * kGpuReadStretch + lane_index() * sizeof(Words4);
  uint32_t sum = 0;
  GPU_KEEP_LOOP
  for (size_t turn = 0; turn < kGpuReadStretch / kReadTurn; ++turn) {
    Words4 loaded[kReadsAtOnce];
    GPU_UNROLL
    for (unsigned index = 0; index < kReadsAtOnce; ++index) {
      loaded[index] = stream_16(place + index * kWarpThreads * sizeof(Words4));
    }
    GPU_UNROLL
    for (const Words4& each : loaded) {
      sum += each.words[0] + each.words[1] + each.words[2] + each.words[3];
    }
    place += kReadTurn;
  }
  sum = sum_of_lanes(sum);
  if (lane_index() == 0) read.sums[stretch] = sum;
}

}  // namespace

void gpu_read_memory(void* stream, const GpuRead& read) {
  CHECK(read.bytes % kGpuReadStretch == 0, "{} bytes are not whole stretches", read.bytes);
  constexpr size_t kBlockBytes = kReadThreads / kWarpThreads * kGpuReadStretch;
  const size_t blocks = std::max<size_t>(1, divide_up(read.bytes, kBlockBytes));
  launch(stream, {.columns = static_cast<unsigned>(blocks), .threads = kReadThreads}, read_memory,
         read);
}

}  // namespace lockstep
