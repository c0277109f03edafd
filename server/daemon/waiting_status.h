// Whom this host waits for among several, as it was told last.
#pragma once

#include <string>

#include "engine/base/mutex.h"

namespace lockstep {

// Any thread.
class WaitingStatus {
 public:
  // "host 1 of 2 hosts", for as long as nothing else is told; empty: this host waits no more.
  void tell(const std::string& whom) {
    const MutexLock lock(mutex_);
    whom_ = whom;
  }
  // "Waits for host 1 of 2 hosts"; empty while this host does not wait.
  std::string text() const {
    const MutexLock lock(mutex_);
    return whom_.empty() ? std::string() : "Waits for " + whom_;
  }

 private:
  mutable Mutex mutex_;
  std::string whom_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
