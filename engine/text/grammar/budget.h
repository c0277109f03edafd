// Time and memory that one compilation may take, counted by whoever takes them.
#pragma once

#include <chrono>
#include <cstddef>

#include "engine/text/grammar.h"

namespace lockstep {

class GrammarBudget {
 public:
  explicit GrammarBudget(const GrammarLimits& limits)
      : limits_(limits), deadline_(Clock::now() + limits.time) {}

  // Notes that so many bytes were or will be taken. False if that is too much, and from then on.
  // Looks at the clock once per so many calls.
  bool take(size_t bytes) {
    constexpr unsigned kCallsPerLook = 64;
    bytes_ += bytes;
    if (bytes_ > limits_.bytes) spent_ = true;
    if (++calls_ % kCallsPerLook == 0 && Clock::now() > deadline_) spent_ = true;
    return !spent_;
  }

  bool spent() const { return spent_; }
  size_t bytes() const { return bytes_; }
  const GrammarLimits& limits() const { return limits_; }

 private:
  using Clock = std::chrono::steady_clock;
  GrammarLimits limits_;
  Clock::time_point deadline_;
  size_t bytes_ = 0;
  unsigned calls_ = 0;
  bool spent_ = false;
};

}  // namespace lockstep
