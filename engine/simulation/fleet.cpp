#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <utility>

#include "engine/simulation/replica.h"
#include "engine/simulation/router.h"
#include "engine/simulation/simulation.h"

namespace lockstep {
namespace {

class Fleet {
 public:
  Fleet(const FleetOptions& options, std::span<const SimulatedRequest> requests)
      : options_(options),
        requests_(requests),
        router_(make_router(options.router, options.replicas, options.seed)),
        states_(options.replicas) {
    for (size_t replica = 0; replica < options.replicas; ++replica) {
      replicas_.emplace_back(options.replica, options.costs, requests);
    }
  }

  FleetReport run() {
    for (size_t number = 0; number < requests_.size(); ++number) {
      const double now = requests_[number].arrival;
      end_passes(now);
      if (now >= looked_ + options_.router_seconds || number == 0) look(now);
      const size_t chosen = router_->choose(requests_[number], number, states_);
      ++states_[chosen].active;
      const bool was_idle = replicas_[chosen].pass_end() == SimulatedReplica::kNever;
      replicas_[chosen].offer(number, now);
      if (was_idle) await(chosen);
      count(chosen, now);
    }
    end_passes(SimulatedReplica::kNever);
    return finish();
  }

 private:
  // Ends all passes that end by then, in the order of time.
  void end_passes(double until) {
    while (!ends_.empty() && ends_.top().first <= until) {
      const auto [now, replica] = ends_.top();
      ends_.pop();
      replicas_[replica].end_pass();
      await(replica);
      count(replica, now);
    }
  }

  void await(size_t replica) {
    const double end = replicas_[replica].pass_end();
    if (end != SimulatedReplica::kNever) ends_.emplace(end, replica);
  }

  void look(double now) {
    looked_ = now;
    for (size_t replica = 0; replica < replicas_.size(); ++replica) {
      states_[replica] = {.waiting = replicas_[replica].waiting_count(),
                          .running = replicas_[replica].running_count(),
                          .page_use = replicas_[replica].page_use(),
                          .active = states_[replica].active};
    }
  }

  void count(size_t replica, double now) {
    last_ = now;
    for (const ServedRequest& served : replicas_[replica].take_served()) {
      --states_[replica].active;
      if (requests_[served.request].arrival < options_.skipped_seconds) continue;
      ++report_.requests;
      if (served.refused) {
        ++report_.refused;
        continue;
      }
      report_.answer_tokens += static_cast<double>(served.tokens);
      report_.first_tokens.push_back(served.first_token);
      if (served.tokens > 1) {
        report_.mean_gaps.push_back(served.mean_gap);
        report_.longest_gaps.push_back(served.longest_gap);
      }
      report_.good += served.first_token <= options_.first_token_limit &&
                      served.mean_gap <= options_.token_limit;
      report_.seconds = now;
    }
  }

  FleetReport finish() {
    const auto first = std::ranges::find_if(requests_, [&](const SimulatedRequest& request) {
      return request.arrival >= options_.skipped_seconds;
    });
    if (first != requests_.end()) report_.seconds -= first->arrival;
    report_.seconds = std::max(report_.seconds, 0.0);
    for (const SimulatedReplica& replica : replicas_) {
      const SchedulerCounters& counters = replica.counters();
      report_.prompt_tokens_asked += counters.prefix_query_tokens;
      report_.prompt_tokens_found += counters.prefix_hit_tokens;
      report_.preemptions += counters.preemptions;
      report_.busy.push_back(last_ > 0 ? replica.busy_seconds() / last_ : 0);
    }
    return std::move(report_);
  }

  using End = std::pair<double, size_t>;  // of a pass, and whose

  const FleetOptions options_;
  const std::span<const SimulatedRequest> requests_;
  std::unique_ptr<Router> router_;
  std::deque<SimulatedReplica> replicas_;
  std::vector<ReplicaState> states_;  // as the router knows them
  double looked_ = 0;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  FleetReport report_;
  double last_ = 0;  // time of the last event
};

bool suffices(const FleetOptions& options, std::span<const SimulatedRequest> requests,
              double good_part) {
  return simulate_fleet(options, requests).good_part() >= good_part;
}

}  // namespace

double percentile(std::vector<double> times, double part) {
  if (times.empty()) return 0;
  const auto index = static_cast<size_t>(part * static_cast<double>(times.size()));
  const auto place = times.begin() + static_cast<ptrdiff_t>(std::min(index, times.size() - 1));
  std::ranges::nth_element(times, place);
  return *place;
}

FleetReport simulate_fleet(const FleetOptions& options,
                           std::span<const SimulatedRequest> requests) {
  return Fleet(options, requests).run();
}

size_t replicas_needed(FleetOptions options, std::span<const SimulatedRequest> requests,
                       double good_part, size_t most) {
  size_t few = 0;  // do not suffice
  size_t many = 1;
  for (options.replicas = many; !suffices(options, requests, good_part);) {
    if (many == most) return 0;
    few = many;
    many = std::min(2 * many, most);
    options.replicas = many;
  }
  while (few + 1 < many) {
    options.replicas = few + (many - few) / 2;
    (suffices(options, requests, good_part) ? many : few) = options.replicas;
  }
  return many;
}

}  // namespace lockstep
