// Tells how far the load is, for whoever waits for a large model.
#pragma once

#include <thread>

#include "engine/engine.h"

namespace lockstep {

// While it lives, a line in the log every few seconds.
class LoadReport {
 public:
  // `engine` outlives it.
  explicit LoadReport(const Engine& engine);

 private:
  static void run(const Engine& engine, const std::stop_token& stop);

  std::jthread thread_;
};

}  // namespace lockstep
