#include "server/daemon/stall_detector.h"

#include <algorithm>

namespace lockstep {

StallStage StallDetector::observe(double now_seconds, double heartbeat_age_seconds,
                                  double stall_seconds) {
  const double passed = last_seconds_ ? now_seconds - *last_seconds_ : 0;
  last_seconds_ = now_seconds;
  stalled_seconds_ =
      std::min(heartbeat_age_seconds, stalled_seconds_ + std::min(passed, tick_seconds_most_));
  if (stalled_seconds_ >= dead_seconds(stall_seconds)) return StallStage::kDead;
  if (stalled_seconds_ >= stall_seconds) return StallStage::kStalled;
  if (stalled_seconds_ >= late_seconds(stall_seconds)) return StallStage::kLate;
  return StallStage::kFine;
}

// With the default of 30 s: not ready before 10 s are over, at an end well before 60 s are.
double late_seconds(double stall_seconds) {
  return 0.3 * stall_seconds;
}

double dead_seconds(double stall_seconds) {
  return 1.5 * stall_seconds;
}

}  // namespace lockstep
