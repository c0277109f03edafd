// A rank's mailbox: flags that the other ranks set, the data they send, and the words by which the
// rank says whom it waits for. Made for nvcc as well: C++20.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep {

constexpr size_t kGpuRanksMax = 16;
// Blocks of a rank that exchange at the same time, each with the block of the same index of all
// other ranks: a channel. Their number was not measured.
constexpr size_t kGpuChannelsMax = 32;

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

// The bytes of one rank's mailbox.
size_t gpu_mailbox_bytes(size_t rank_count, size_t channel_count);

// The rank that did not come within the deadline, from the failure word, which may be read once the
// stream has run or at any time. What this rank has computed since is not to be used, its later
// exchanges do nothing, and the others report it in their turn: the mailboxes serve no more, the
// process ends.
std::optional<size_t> missing_rank(uint32_t failure);

// The rank that was last waited for longer than a millisecond, from the waiting word, which may be
// read at any time. Where the word changes, the GPU goes on: it waits.
std::optional<size_t> awaited_rank(uint32_t waiting);

}  // namespace lockstep
