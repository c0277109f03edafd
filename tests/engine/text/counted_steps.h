// The steps that work says it has taken and the bytes that it says it holds, as the preparation of
// requests counts them.
#pragma once

#include <algorithm>
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

  void pause(uint64_t steps) override {
    count_ += steps;
    most_bytes_ = std::max(most_bytes_, held_bytes);
  }
  uint64_t count() const { return count_; }
  uint64_t most_bytes() const { return most_bytes_; }  // held at a pause point

 private:
  uint64_t count_ = 0;
  uint64_t most_bytes_ = 0;
};

}  // namespace lockstep
