#include "engine/collectives/gpu_mailbox.h"

#include "engine/base/check.h"

namespace lockstep {

size_t gpu_mailbox_bytes(size_t rank_count, size_t channel_count) {
  CHECK(rank_count >= 1 && rank_count <= kGpuRanksMax, "{} ranks", rank_count);
  CHECK(channel_count >= 1 && channel_count <= kGpuChannelsMax, "{} channels", channel_count);
  return gpu_slot_offset(channel_count, 0, 0, rank_count);
}

std::optional<size_t> missing_rank(uint32_t failure) {
  if (failure == 0) return std::nullopt;
  return failure - 1;
}

std::optional<size_t> awaited_rank(uint32_t waiting) {
  return missing_rank(waiting % kGpuWaitingTick);
}

}  // namespace lockstep
