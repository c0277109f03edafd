// Time for the workers: the processor's own counter, which no kernel is asked for.
#pragma once

#include <x86intrin.h>

#include <chrono>
#include <cstdint>

namespace lockstep {

inline uint64_t ticks_now() {
  return __rdtsc();
}

// Turns ticks into seconds, by what both clocks have advanced since it was made.
class TickClock {
 public:
  double seconds(uint64_t ticks) const {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    const uint64_t passed_ticks = ticks_now() - start_ticks_;
    if (passed_ticks == 0) return 0;
    return static_cast<double>(ticks) * passed.count() / static_cast<double>(passed_ticks);
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  uint64_t start_ticks_ = ticks_now();
};

}  // namespace lockstep
