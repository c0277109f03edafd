// One daemon of a simulated fleet: the scheduler and the queue of the engine's loop, passes that
// take as long as their costs say, and a virtual clock, in seconds. No thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/interface/simulation.h"
#include "engine/scheduler/queue_shares.h"
#include "engine/scheduler/scheduler.h"
#include "engine/serving/throughput.h"

namespace lockstep {

// A request as its client has seen it.
struct ServedRequest {
  size_t request = 0;      // its number
  bool refused = false;    // the queue was full, or it made way for another tenant's
  double first_token = 0;  // after its arrival
  double longest_gap = 0;  // between two tokens
  double mean_gap = 0;     // 0 where it has one token
  size_t tokens = 0;
};

class SimulatedReplica {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  // `requests` must outlive this; requests are known by their places in it.
  SimulatedReplica(const ReplicaOptions& options, const PassCosts& costs,
                   std::span<const SimulatedRequest> requests);

  // A request comes, which may begin a pass. Where the queue is full, it or another is refused.
  void offer(size_t request, double now);
  // The time at which the pass that is being computed ends; kNever: there is none.
  double pass_end() const { return pass_end_; }
  // Ends that pass, and begins the next one.
  void end_pass();

  // Those that have been answered or refused since the last call.
  std::vector<ServedRequest> take_served() { return std::exchange(served_, {}); }

  size_t waiting_count() const { return arrived_.size() + scheduler_.waiting_count(); }
  size_t running_count() const { return scheduler_.running_count(); }
  double page_use() const;  // of all KV pages, the part that sequences hold
  double busy_seconds() const { return busy_seconds_; }
  const SchedulerCounters& counters() const { return scheduler_.counters(); }

 private:
  struct Open {
    size_t request = 0;
    double last_token = 0;
    ServedRequest seen;
  };

  void refuse(size_t request);
  void refuse_group(QueueShares::GroupId group);
  void begin_pass(double now);
  void add_token(SequenceId id, double now);

  const ReplicaOptions options_;
  const PassCosts costs_;
  const std::span<const SimulatedRequest> requests_;
  Scheduler scheduler_;
  QueueShares shares_;
  Throughput throughput_;
  std::vector<size_t> arrived_;  // since the pass began
  std::map<SequenceId, Open> open_;
  std::map<size_t, SequenceId> sequences_;  // by request, once the scheduler has it
  std::vector<SequenceId> gone_;            // refused after the scheduler had them
  std::vector<ServedRequest> served_;
  const Schedule* schedule_ = nullptr;  // of the pass that is being computed
  double pass_begin_ = 0;
  double pass_end_ = kNever;
  double busy_seconds_ = 0;
};

}  // namespace lockstep
