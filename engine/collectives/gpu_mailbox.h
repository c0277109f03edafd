// The layout of a rank's mailbox: flags that the other ranks set, and the data they send.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/collectives/gpu_all_reduce.h"

namespace lockstep {

// The bytes that a rank sends in one round of a channel. Not measured.
constexpr size_t kGpuSlotBytes = 16 * 1024;

// The waiting word: a count of about milliseconds times this, and the rank that is waited for + 1.
constexpr uint32_t kGpuWaitingTick = 256;
static_assert(kGpuRanksMax < kGpuWaitingTick);

struct GpuMailbox {
  // A channel's round is the count of barriers that its blocks have passed.
  struct Channel {
    alignas(128) uint32_t arrived[kGpuRanksMax];  // by sender: the last round that it has sent
    alignas(64) uint32_t round;                   // this rank's own, between launches
  };
  Channel channels[kGpuChannelsMax];
  alignas(128) uint32_t failed;  // this rank's own: it has waited in vain
  uint64_t spent_ns;             // this rank's own: what channel 0 has taken
};

// The offset of the data that `sender` sends in a round: two slots take turns. A rank that sends in
// round r + 2 has passed the barrier of r + 1, at which no rank arrives before it has read all of
// r.
constexpr size_t gpu_slot_offset(size_t channel, uint32_t round, size_t sender, size_t rank_count) {
  return sizeof(GpuMailbox) + ((channel * 2 + round % 2) * rank_count + sender) * kGpuSlotBytes;
}

}  // namespace lockstep
