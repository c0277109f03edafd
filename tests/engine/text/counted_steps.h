// The steps that work says it has taken, as who prepares requests counts them.
#pragma once

#include <cstdint>

#include "engine/base/pause_point.h"

namespace lockstep {

// Counts while it lives, on the thread that made it.
class CountedSteps final : public PauseHandler {
 public:
  CountedSteps() { pause_handler = this; }
  ~CountedSteps() override { pause_handler = nullptr; }
  CountedSteps(const CountedSteps&) = delete;
  CountedSteps& operator=(const CountedSteps&) = delete;

  void pause(uint64_t steps) override { count_ += steps; }
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
};

}  // namespace lockstep
