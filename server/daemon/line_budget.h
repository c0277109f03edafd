// How many lines of one kind the log may take, so that a client that causes them cannot fill a
// disk. Time comes in as a value. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "engine/base/mutex.h"

namespace lockstep {

class LineBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `burst` lines at once, `per_second` in the long run.
  LineBudget(double per_second, double burst)
      : per_second_(per_second), burst_(burst), left_(burst) {}

  // Whether a line may be written; counts it as left out if not.
  bool take(Time now);
  // How many lines were left out since the last answer; none before `interval` is over since then,
  // or if there were none.
  std::optional<uint64_t> left_out(Time now, std::chrono::seconds interval);

 private:
  const double per_second_;
  const double burst_;
  Mutex mutex_;
  double left_ LOCKSTEP_GUARDED_BY(mutex_);
  Time filled_ LOCKSTEP_GUARDED_BY(mutex_) = {};
  uint64_t left_out_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  Time told_ LOCKSTEP_GUARDED_BY(mutex_) = {};
};

}  // namespace lockstep
