#include "server/daemon/waiting_status.h"

namespace lockstep {

void WaitingStatus::tell(const std::string& whom, Clock::time_point now) {
  const MutexLock lock(mutex_);
  whom_ = whom;
  told_at_ = now;
}

std::string WaitingStatus::text(Clock::time_point now) const {
  const MutexLock lock(mutex_);
  if (whom_.empty() || now - told_at_ > kLasts) return {};
  return "Waits for " + whom_;
}

}  // namespace lockstep
