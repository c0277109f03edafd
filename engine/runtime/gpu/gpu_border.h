// A border between the layers of two GPUs: of every chunk of a pass one of them gives the rows of a
// residual, and the other takes them, while the first goes on with the next chunk. Their streams
// are ordered by events, so no kernel waits, and nothing keeps a GPU from what it waits for.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/gpu_device.h"
#include "engine/machine/node_memory.h"

namespace lockstep {

class GpuBorder {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // A rank, and its GPU, which outlives the border.
  struct Side {
    size_t rank = 0;
    GpuDevice* device = nullptr;
  };

  // Memory for the rows of so many chunks, `bytes` each at most: the taker's if the giver `reaches`
  // it, else the host's on `node`. Fails with kMachineRefused.
  static Result<std::unique_ptr<GpuBorder>> make(const Side& giver, const Side& taker,
                                                 size_t slot_count, size_t bytes, bool reaches,
                                                 int node);

  const Side& giver() const { return giver_; }
  const Side& taker() const { return taker_; }

  // Enqueues a chunk's rows, by the thread of the giver's stream, once there is space for them;
  // false: there is none by the deadline, or the taker has failed.
  Result<bool> give(GpuStream& stream, const std::byte* rows, size_t bytes, TimePoint deadline);
  // Enqueues their copy to `rows` behind that, by the thread of the taker's stream, once they have
  // been given; false: not by the deadline, or the giver has failed.
  Result<bool> take(GpuStream& stream, std::byte* rows, size_t bytes, TimePoint deadline);
  // When what follows take() is done: there is space for another chunk.
  void end_chunk() { taken_.fetch_add(1, std::memory_order_release); }

  // Between take() and end_chunk(): whether the giver's GPU still has to compute what the taker's
  // waits for.
  bool is_awaited() const;

  // By a side that has failed: the other waits no longer.
  void abandon() { is_abandoned_.store(true, std::memory_order_release); }

 private:
  GpuBorder(const Side& giver, const Side& taker, size_t bytes)
      : giver_(giver), taker_(taker), slot_bytes_(bytes) {}
  size_t slot_of(uint64_t chunk) const { return static_cast<size_t>(chunk % given_events_.size()); }
  std::byte* rows_of(uint64_t chunk) const;
  template <typename Condition>
  bool wait_for(TimePoint deadline, const Condition& condition) const;

  Side giver_;
  Side taker_;
  size_t slot_bytes_;
  GpuMemory memory_;  // the taker's, or
  NodeMemory host_;
  GpuMemory pinned_;                                     // host_
  std::vector<std::unique_ptr<GpuEvent>> given_events_;  // by slot
  // Chunks of all passes whose event the giver has recorded, and those that the taker is done with;
  // each pairs with the other side's look at it.
  std::atomic<uint64_t> given_ = 0;
  std::atomic<uint64_t> taken_ = 0;
  std::atomic<bool> is_abandoned_ = false;
};

}  // namespace lockstep
