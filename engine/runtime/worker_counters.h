// The counters of a worker while it walks: written by it alone, read by scrapes, never locked.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/machine/signal_line.h"

namespace lockstep {

// One writer: no atomic addition is needed.
class WorkerCounter {
 public:
  void add(uint64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_ = 0;
};

struct alignas(kLineBytes) WorkerCounters {
  WorkerCounter exchange_ticks;  // spent in pushing to other ranks and in summing theirs
  WorkerCounter exchange_ns;     // spent so by a GPU, as its own clock counts
  WorkerCounter exchange_bytes;  // written to or read from other ranks
  WorkerCounter gpu_ticks;       // of what its GPU was given, from handing it over to its end
  WorkerCounter wait_ticks;      // spent at barriers
  WorkerCounter meetings;        // how often it met the others
};

}  // namespace lockstep
