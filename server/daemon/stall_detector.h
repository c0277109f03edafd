// How long the engine has not moved while it had work, and what follows from it. No thread and no
// clock of its own.
#pragma once

#include <optional>

namespace lockstep {

enum class StallStage {
  kFine,
  kLate,     // no longer ready: somebody else should get the requests
  kStalled,  // no longer alive: its stacks are worth a look
  kDead,     // it ends itself
};

class StallDetector {
 public:
  // Told of at least once in `tick_seconds`. If it is not (the whole process was stopped, or the
  // machine slept), the time in between is nobody's fault and does not count.
  explicit StallDetector(double tick_seconds) : tick_seconds_most_(2 * tick_seconds) {}

  // `now` is of any clock that does not go back. `heartbeat_age` is how long ago the engine has
  // finished a pass, or has had nothing to do. `stall_seconds` as the option.
  StallStage observe(double now_seconds, double heartbeat_age_seconds, double stall_seconds);

  // As the last observe() has counted it.
  double stalled_seconds() const { return stalled_seconds_; }

 private:
  double tick_seconds_most_;
  std::optional<double> last_seconds_;
  double stalled_seconds_ = 0;
};

// After how many seconds without a heartbeat a stage is reached.
double late_seconds(double stall_seconds);
double dead_seconds(double stall_seconds);

}  // namespace lockstep
