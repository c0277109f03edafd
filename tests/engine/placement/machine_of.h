// A machine of a test's own topology; all else is as on the machine that runs the test.
#pragma once

#include <utility>

#include "engine/placement/machine.h"

namespace lockstep {

// `platform`: how its GPUs are opened; null: as this machine's.
inline Machine machine_of(Topology topology, const GpuPlatform* platform = nullptr) {
  static const Machine read = Machine::read(/*with_gpus=*/false);
  Machine machine = read;
  if (platform != nullptr) machine.gpu_platform = platform;
  machine.topology = std::move(topology);
  return machine;
}

}  // namespace lockstep
