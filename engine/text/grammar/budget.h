// Time and memory that one compilation may take, counted where they are taken. Time is the
// thread's own, of the processor: a machine that is busy refuses nothing that an idle one takes.
#pragma once

#include <time.h>

#include <chrono>
#include <cstddef>

#include "engine/base/pause_point.h"
#include "engine/text/grammar.h"

namespace lockstep {

class GrammarBudget {
 public:
  explicit GrammarBudget(const GrammarLimits& limits)
      : limits_(limits), deadline_(now() + limits.time) {}
  ~GrammarBudget() { note_held_bytes(-static_cast<int64_t>(bytes_)); }
  GrammarBudget(const GrammarBudget&) = delete;
  GrammarBudget& operator=(const GrammarBudget&) = delete;

  // Notes that so many bytes were or will be taken. False if that is too much, and from then on.
  // Looks at the clock once per so many calls.
  bool take(size_t bytes) {
    bytes_ += bytes;
    note_held_bytes(static_cast<int64_t>(bytes));
    if (bytes_ > limits_.bytes) spent_ = true;
    return ++calls_ % kCallsPerLook == 0 ? look() : !spent_;
  }

  // Before what may take long: looks at the clock at once. A pause_point(): no lock is held. As
  // many steps as the calls of take() between two looks.
  bool look() {
    pause_point(kCallsPerLook);
    if (now() > deadline_) spent_ = true;
    return !spent_;
  }

  bool spent() const { return spent_; }
  size_t bytes() const { return bytes_; }
  const GrammarLimits& limits() const { return limits_; }

 private:
  static constexpr unsigned kCallsPerLook = 64;

  static std::chrono::nanoseconds now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }

  GrammarLimits limits_;
  std::chrono::nanoseconds deadline_;
  size_t bytes_ = 0;
  unsigned calls_ = 0;
  bool spent_ = false;
};

}  // namespace lockstep
