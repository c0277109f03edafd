// How long ago the engine has moved, seen from outside: it has finished a pass, or has had nothing
// to do.
#pragma once

#include <chrono>
#include <string>

#include "engine/engine.h"

namespace lockstep {

// Used by one thread.
class EngineHeartbeat {
 public:
  // `engine` outlives it.
  explicit EngineHeartbeat(const Engine& engine) : engine_(engine) {}

  // As of this call; what happened between two calls counts as of the second.
  double age_seconds();

  // The batch, in a sentence.
  std::string describe() const;

 private:
  using Clock = std::chrono::steady_clock;

  const Engine& engine_;
  uint64_t steps_ = 0;
  Clock::time_point moved_ = Clock::now();
};

}  // namespace lockstep
