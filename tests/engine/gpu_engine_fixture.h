// An engine that computes on a simulated GPU.
#pragma once

#include <vector>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {

class OnGpuEngine : public EngineTest {
 protected:
  OnGpuEngine() {
    host_gpu(0).reset();
    options_.devices = "gpu0";
    options_.worker_count = 0;
    gpus_ = {simulated_gpu(0, -1)};
    machine_->gpu_platform = &test_gpus();
  }

  std::vector<Gpu>& gpus_ = machine_.emplace(Machine::read(/*with_gpus=*/false)).topology.gpus;
};

}  // namespace lockstep
