#include "tests/engine/collectives/cuda/simulated_gpus.h"

#include <thread>

namespace lockstep {

MadeUpGpus::MadeUpGpus(size_t count, size_t channel_count)
    : failures_(count * kLineWords, 0), peers_(count) {
  const size_t bytes = gpu_mailbox_bytes(count, channel_count);
  for (size_t rank = 0; rank < count; ++rank) {
    mailboxes_.push_back(std::make_unique<Line[]>((bytes + sizeof(Line) - 1) / sizeof(Line)));
  }
  for (size_t rank = 0; rank < count; ++rank) {
    GpuPeers& peers = peers_[rank];
    peers.rank = rank;
    peers.rank_count = count;
    peers.channel_count = channel_count;
    peers.failure = &failures_[rank * kLineWords];
    // No test depends on how fast it is: what never comes is waited for in one test alone.
    peers.deadline_ns = uint64_t{3600} * 1'000'000'000;
    for (size_t other = 0; other < count; ++other) {
      peers.mailboxes[other] = reinterpret_cast<std::byte*>(mailboxes_[other].get());
    }
  }
}

void MadeUpGpus::run(const std::function<void(size_t rank)>& job) {
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < count(); ++rank) threads.emplace_back(job, rank);
}

}  // namespace lockstep
