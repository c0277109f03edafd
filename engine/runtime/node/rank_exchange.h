// Sends what a worker has computed to the other ranks, and counts time and bytes.
#pragma once

#include <cstddef>

#include "engine/machine/tick_clock.h"
#include "engine/runtime/node/pass.h"

namespace lockstep {

// Counts the time from its making to its end as spent in exchange.
class ExchangeTime {
 public:
  explicit ExchangeTime(const Pass& pass) : counters_(pass.counters) {}
  ExchangeTime(const ExchangeTime&) = delete;
  ExchangeTime& operator=(const ExchangeTime&) = delete;
  ~ExchangeTime() { counters_.exchange_ticks.add(ticks_now() - start_); }

 private:
  WorkerCounters& counters_;
  uint64_t start_ = ticks_now();
};

inline bool has_peers(const Pass& pass) {
  return pass.peers.distances.size() > 1;
}

// Pushes what this worker has just computed into the other ranks' copies.
void push(const Pass& pass, const void* own, size_t bytes);

}  // namespace lockstep
