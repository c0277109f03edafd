// A machine of a test's own topology; all else is as on the machine that runs the test.
#pragma once

#include <utility>

#include "engine/placement/machine.h"

namespace lockstep {

inline Machine machine_of(Topology topology, const EngineOptions& options = {}) {
  static const Machine read = Machine::read({}, /*with_gpus=*/false);
  Machine machine = read;
  if (options.gpu_platform != nullptr) machine.gpu_platform = options.gpu_platform;
  machine.topology = std::move(topology);
  return machine;
}

}  // namespace lockstep
