// A fake NCCL for GPUs whose streams are the host's: the ranks' threads meet, copy and add. A
// sum of more than two has, as NCCL's, an order that depends on where in the message it lies.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "engine/collectives/nccl.h"

namespace lockstep {

struct HostNcclJoin;

// For GpuPlatform::join, which is a plain function: what it is to do, and what has been asked of
// what it made. Any thread may call.
class HostNccl {
 public:
  // As it was made.
  void reset();
  // From now on no GPUs can be joined.
  void refuse(bool refused);
  // From now on a process whose first rank this is cannot join others.
  void refuse_rank(std::optional<size_t> first);
  // From now on this rank enqueues nothing, and the others wait for so long at most.
  void silence(size_t rank, std::chrono::nanoseconds deadline);
  // From now on no call fails because others do not come to it: the stream that it is on is not
  // done after so long, nor later, until abort().
  void wait_for_ever(std::chrono::nanoseconds look);

  struct Counts {
    size_t joined = 0;  // groups of ranks, ever
    size_t all_reduces = 0;
    size_t exchanges = 0;
    size_t aborts = 0;
  };
  Counts counts() const;

 private:
  friend class HostNcclRanks;
  friend Result<std::unique_ptr<NcclRanks>> join_host_gpus_among(std::span<const int> gpus,
                                                                 const NcclPlace& place,
                                                                 std::chrono::nanoseconds deadline);
  friend Result<std::unique_ptr<NcclRanks>> join_host_gpus(std::span<const int> gpus,
                                                           std::chrono::nanoseconds deadline);

  struct State {
    bool is_refused = false;
    std::optional<size_t> refused_rank;
    std::map<NcclId, std::shared_ptr<HostNcclJoin>> joins;  // of several processes
    std::optional<size_t> silent_rank;
    std::optional<std::chrono::nanoseconds> deadline;
    bool waits_for_ever = false;
    Counts counts;
  };

  template <typename Change>
  void change(Change change) {
    const std::lock_guard lock(mutex_);
    change(state_);
  }
  bool is_silent(size_t rank) const;
  bool waits_for_ever() const;
  std::chrono::nanoseconds deadline_or(std::chrono::nanoseconds given) const;

  State state_;  // GUARDED_BY(mutex_)
  mutable std::mutex mutex_;
};

HostNccl& host_nccl();
// `stream` of its calls: a LaunchStream, or null: at once.
Result<std::unique_ptr<NcclRanks>> join_host_gpus(std::span<const int> gpus,
                                                  std::chrono::nanoseconds deadline);
// For GpuPlatform::join_among: the processes are objects of this one, joined by their id.
Result<NcclId> make_host_nccl_id();
Result<std::unique_ptr<NcclRanks>> join_host_gpus_among(std::span<const int> gpus,
                                                        const NcclPlace& place,
                                                        std::chrono::nanoseconds deadline);

}  // namespace lockstep
