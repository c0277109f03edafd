// Whom this host waits for among several, as it was told last.
#pragma once

#include <chrono>
#include <string>

#include "engine/base/mutex.h"

namespace lockstep {

class WaitingStatus {
 public:
  using Clock = std::chrono::steady_clock;
  // A host that waits is told of about once a second; what is older is over.
  static constexpr std::chrono::seconds kLasts{3};

  // "host 1 of 2 hosts". Any thread.
  void tell(const std::string& whom, Clock::time_point now = Clock::now());
  // "Waits for host 1 of 2 hosts"; empty while this host does not wait. Any thread.
  std::string text(Clock::time_point now = Clock::now()) const;

 private:
  mutable Mutex mutex_;
  std::string whom_ LOCKSTEP_GUARDED_BY(mutex_);
  Clock::time_point told_at_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
