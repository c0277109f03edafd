// The counters of a worker while it walks, and the clock whose ticks they count.
#pragma once

#include <x86intrin.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "engine/machine/signal_line.h"

namespace lockstep {

// The processor's own counter, which no kernel is asked for.
inline uint64_t ticks_now() {
  return __rdtsc();
}

// Turns ticks into seconds, by one rate that it measures when it is made (some milliseconds): what
// grows in ticks grows in seconds.
class TickClock {
 public:
  TickClock() {
    using SteadyClock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kMeasured{5};
    const SteadyClock::time_point start = SteadyClock::now();
    const uint64_t start_ticks = ticks_now();
    SteadyClock::duration passed{};
    do {
      passed = SteadyClock::now() - start;
    } while (passed < kMeasured);
    seconds_per_tick_ = std::chrono::duration<double>(passed).count() /
                        static_cast<double>(ticks_now() - start_ticks);
  }

  double seconds(uint64_t ticks) const { return static_cast<double>(ticks) * seconds_per_tick_; }

 private:
  double seconds_per_tick_ = 0;
};

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

// Written by one worker alone, read by scrapes, never locked.
struct alignas(kLineBytes) WorkerCounters {
  WorkerCounter exchange_ticks;  // spent in pushing to other ranks and in summing theirs
  WorkerCounter exchange_ns;     // spent so by a GPU, as its own clock counts
  WorkerCounter exchange_bytes;  // written to or read from other ranks
  WorkerCounter gpu_ticks;       // of what its GPU was given, from handing it over to its end
  WorkerCounter wait_ticks;      // spent at barriers
  WorkerCounter barriers;        // how often it met the others
};

}  // namespace lockstep
