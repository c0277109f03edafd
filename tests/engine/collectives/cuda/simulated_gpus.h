// GPU ranks whose memory is the host's and whose streams are threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/collectives/gpu_all_reduce.h"
#include "engine/collectives/gpu_mailbox.h"

namespace lockstep {

class MadeUpGpus {
 public:
  explicit MadeUpGpus(size_t count, size_t channel_count = 4);

  size_t count() const { return peers_.size(); }
  GpuPeers& peers(size_t rank) { return peers_[rank]; }
  uint32_t failure(size_t rank) const { return failures_[rank * kLineWords]; }
  GpuMailbox& mailbox(size_t rank) {
    return *reinterpret_cast<GpuMailbox*>(peers_[rank].mailboxes[rank]);
  }

  // Runs job(rank) for all ranks at the same time.
  void run(const std::function<void(size_t rank)>& job);

 private:
  struct alignas(128) Line {
    std::byte bytes[128];
  };
  static constexpr size_t kLineWords = 32;

  std::vector<std::unique_ptr<Line[]>> mailboxes_;
  std::vector<uint32_t> failures_;
  std::vector<GpuPeers> peers_;
};

}  // namespace lockstep
