// Time for the workers: the processor's own counter, which no kernel is asked for.
#pragma once

#include <x86intrin.h>

#include <chrono>
#include <cstdint>

namespace lockstep {

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

}  // namespace lockstep
