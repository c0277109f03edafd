#include "engine/collectives/gpu_all_reduce.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/collectives/gpu_mailbox.h"
#include "engine/collectives/gpu_sum_launch.h"

namespace lockstep {
namespace {

constexpr size_t kUnitBytes = kGpuUnitFloats * sizeof(float);
// Several for each multiprocessor of any GPU; threads take what is more in turns.
constexpr size_t kPartSumBlocksMax = 1024;

size_t divide_up(size_t value, size_t divisor) {
  return (value + divisor - 1) / divisor;
}

bool is_aligned(const float* rows, size_t stride) {
  return reinterpret_cast<uintptr_t>(rows) % kUnitBytes == 0 && stride % kGpuUnitFloats == 0;
}

uint32_t bit_per_rank(std::span<const size_t> ranks, size_t rank_count) {
  uint32_t bits = 0;
  for (const size_t rank : ranks) {
    CHECK(rank < rank_count, "contributor {} of {} ranks", rank, rank_count);
    bits |= 1U << rank;
  }
  return bits;
}

}  // namespace

size_t gpu_mailbox_bytes(size_t rank_count, size_t channel_count) {
  CHECK(rank_count >= 1 && rank_count <= kGpuRanksMax, "{} ranks", rank_count);
  CHECK(channel_count >= 1 && channel_count <= kGpuChannelsMax, "{} channels", channel_count);
  return gpu_slot_offset(channel_count, 0, 0, rank_count);
}

size_t gpu_sum_sent_bytes(const GpuAllReduce& sum, size_t rank_count) {
  const size_t values = (rank_count - 1) * sum.row_count * sum.column_count;
  const size_t partial_bytes = sum.bf16 ? sizeof(uint16_t) : sizeof(float);
  if (!sum.two_shots) return values * partial_bytes;
  return values * (partial_bytes + sizeof(float)) / rank_count;
}

std::optional<size_t> missing_rank(uint32_t failure) {
  if (failure == 0) return std::nullopt;
  return failure - 1;
}

std::optional<size_t> awaited_rank(uint32_t waiting) {
  return missing_rank(waiting % kGpuWaitingTick);
}

void check_gpu_peers(const GpuPeers& peers) {
  CHECK(peers.rank < peers.rank_count && peers.rank_count <= kGpuRanksMax, "rank {} of {}",
        peers.rank, peers.rank_count);
  CHECK(peers.channel_count >= 1 && peers.channel_count <= kGpuChannelsMax,
        "{} channels: so many blocks may not be resident", peers.channel_count);
  CHECK(peers.failure != nullptr, "rank {} has no failure word", peers.rank);
  for (size_t rank = 0; rank < peers.rank_count; ++rank) {
    const auto address = reinterpret_cast<uintptr_t>(peers.mailboxes[rank]);
    CHECK(address != 0 && address % alignof(GpuMailbox) == 0,
          "the mailbox of rank {} is at {:#x}: nowhere or not aligned", rank, address);
  }
}

GpuSumLaunch gpu_sum_launch(const GpuAllReduce& sum, const GpuPeers& peers) {
  check_gpu_peers(peers);
  GpuSumLaunch launch = {.partial = sum.partial,
                         .partial_stride = sum.partial_stride,
                         .output = sum.output,
                         .output_stride = sum.output_stride,
                         .row_limit = sum.row_limit,
                         .contributors = bit_per_rank(sum.contributors, peers.rank_count),
                         .partial_aligned = is_aligned(sum.partial, sum.partial_stride),
                         .output_aligned = is_aligned(sum.output, sum.output_stride)};
  const size_t units_per_row = divide_up(sum.column_count, kGpuUnitFloats);
  const size_t units = sum.row_count * units_per_row;
  if (units == 0 || launch.contributors == 0) return launch;
  CHECK((launch.contributors >> peers.rank & 1U) == 0 || sum.partial != nullptr,
        "rank {} contributes nothing", peers.rank);
  // Indices go a stride past the end.
  CHECK(units < size_t{1} << 31U, "{} rows of {} columns", sum.row_count, sum.column_count);
  // A unit per thread while there are channels; then as many as fit the slots that a rank sends to.
  const size_t per_channel = divide_up(units, peers.channel_count);
  const size_t shares = sum.two_shots ? peers.rank_count : 1;
  const size_t piece = std::min(divide_up(per_channel, kGpuSumThreads) * kGpuSumThreads,
                                kGpuSlotBytes / kUnitBytes * shares);
  launch.column_count = static_cast<unsigned>(sum.column_count);
  launch.units_per_row = static_cast<unsigned>(units_per_row);
  launch.unit_count = static_cast<unsigned>(units);
  launch.piece_units = static_cast<unsigned>(piece);
  launch.block_count =
      static_cast<unsigned>(std::min(divide_up(units, piece), peers.channel_count));
  return launch;
}

GpuPartSumLaunch gpu_part_sum_launch(const GpuPartSum& sum) {
  CHECK(sum.part_count >= 1 && sum.part_count <= kGpuRanksMax, "a sum of {} parts", sum.part_count);
  const auto aligned = [](const float* floats) { return is_aligned(floats, 0); };
  GpuPartSumLaunch launch = {.aligned = aligned(sum.output)};
  for (size_t part = 0; part < sum.part_count; ++part) {
    launch.aligned = launch.aligned && aligned(sum.parts[part]);
  }
  const size_t blocks = divide_up(divide_up(sum.count, kGpuUnitFloats), kGpuSumThreads);
  launch.block_count = static_cast<unsigned>(std::min(blocks, kPartSumBlocksMax));
  return launch;
}

}  // namespace lockstep
