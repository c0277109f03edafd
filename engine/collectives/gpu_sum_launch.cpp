#include "engine/collectives/gpu_sum_launch.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/collectives/gpu_mailbox.h"

namespace lockstep {
namespace {

constexpr size_t kUnitBytes = kGpuUnitFloats * sizeof(float);
static_assert(kGpuSumThreads % kGpuChunkUnits == 0 &&
              kGpuSlotBytes / kUnitBytes % kGpuChunkUnits == 0);
// Several for each multiprocessor of any GPU; threads take what is more in turns.
constexpr size_t kPartSumBlocksMax = 1024;

bool is_aligned(const float* rows, size_t stride) {
  return reinterpret_cast<uintptr_t>(rows) % kUnitBytes == 0 && stride % kGpuUnitFloats == 0;
}

// A unit is stored at once as four floats, or four bf16.
bool is_aligned(const GpuNormOutput& norm) {
  constexpr size_t kBf16UnitBytes = kGpuUnitFloats * sizeof(uint16_t);
  return is_aligned(norm.weight, 0) && is_aligned(norm.rows.f32, norm.rows.f32_stride) &&
         reinterpret_cast<uintptr_t>(norm.rows.bf16) % kBf16UnitBytes == 0 &&
         norm.rows.bf16_stride % kGpuUnitFloats == 0;
}

bool lies_in(const void* address, const float* rows, size_t floats) {
  const auto place = reinterpret_cast<uintptr_t>(address);
  const auto begin = reinterpret_cast<uintptr_t>(rows);
  return place >= begin && place < begin + floats * sizeof(float);
}

void add_norms(const GpuAllReduce& sum, GpuSumLaunch& launch) {
  CHECK(sum.norm_count <= kGpuProductNorms, "{} norms of one sum", sum.norm_count);
  launch.norms_aligned = true;
  for (; launch.norm_count < sum.norm_count; ++launch.norm_count) {
    const GpuNormOutput& norm = sum.norms[launch.norm_count];
    // Blocks store norms while others have yet to send.
    for (const void* const rows :
         {static_cast<const void*>(norm.rows.bf16), static_cast<const void*>(norm.rows.f32),
          static_cast<const void*>(norm.chunk_sums)}) {
      CHECK(!lies_in(rows, sum.partial, sum.row_count * sum.partial_stride),
            "norm {} is stored over what is summed", launch.norm_count);
    }
    launch.norms[launch.norm_count] = norm;
    launch.norms_aligned = launch.norms_aligned && is_aligned(norm);
  }
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

size_t gpu_sum_sent_bytes(const GpuAllReduce& sum, size_t rank_count) {
  const size_t values = (rank_count - 1) * sum.row_count * sum.column_count;
  const size_t partial_bytes = sum.bf16 ? sizeof(uint16_t) : sizeof(float);
  if (!sum.two_shots) return values * partial_bytes;
  return values * (partial_bytes + sizeof(float)) / rank_count;
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
  const size_t units_per_row =
      round_up<size_t>(sum.column_count, kGpuChunkColumns) / kGpuUnitFloats;
  const size_t units = sum.row_count * units_per_row;
  CHECK(launch.contributors != 0 || sum.norm_count == 0, "norms of a sum of no partials");
  if (units == 0 || launch.contributors == 0) return launch;
  CHECK((launch.contributors >> peers.rank & 1U) == 0 || sum.partial != nullptr,
        "rank {} contributes nothing", peers.rank);
  // Indices go a stride past the end.
  CHECK(units < size_t{1} << 31U, "{} rows of {} columns", sum.row_count, sum.column_count);
  // A unit per thread while there are channels; then as many as fit the slots that a rank sends to.
  // Whole chunks, as are the shares of a piece.
  const size_t per_channel = divide_up(units, peers.channel_count);
  const size_t shares = sum.two_shots ? peers.rank_count : 1;
  const size_t piece =
      std::min(round_up<size_t>(per_channel, kGpuSumThreads), kGpuSlotBytes / kUnitBytes * shares);
  launch.column_count = static_cast<unsigned>(sum.column_count);
  launch.units_per_row = static_cast<unsigned>(units_per_row);
  launch.unit_count = static_cast<unsigned>(units);
  launch.piece_units = static_cast<unsigned>(piece);
  launch.block_count =
      static_cast<unsigned>(std::min(divide_up(units, piece), peers.channel_count));
  add_norms(sum, launch);
  return launch;
}

GpuPartSumLaunch gpu_part_sum_launch(const GpuPartSum& sum) {
  CHECK(sum.part_count >= 1 && sum.part_count <= kGpuRanksMax, "a sum of {} parts", sum.part_count);
  const auto aligned = [](const float* floats) { return is_aligned(floats, 0); };
  GpuPartSumLaunch launch = {.aligned = aligned(sum.output)};
  for (size_t part = 0; part < sum.part_count; ++part) {
    launch.aligned = launch.aligned && aligned(sum.parts[part]);
  }
  const size_t blocks = divide_up<size_t>(sum.count, kGpuUnitFloats * kGpuSumThreads);
  launch.block_count = static_cast<unsigned>(std::min(blocks, kPartSumBlocksMax));
  return launch;
}

}  // namespace lockstep
