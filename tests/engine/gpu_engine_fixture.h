// An engine that computes on simulated GPUs.
#pragma once

#include <vector>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {

// `Test`: an EngineTest.
template <typename Test>
class OnGpus : public Test {
 protected:
  OnGpus() {
    host_gpu(0).reset();
    this->options_.devices = "gpu0";
    this->options_.worker_count = 0;
    gpus_ = {simulated_gpu(0, -1)};
    this->machine_->gpu_platform = &test_gpus();
  }

  // Two GPUs, linked so.
  void use_two(GpuLink link) {
    this->engine_.reset();
    host_gpu(1).reset();
    gpus_ = {simulated_gpu(0, -1), simulated_gpu(1, -1)};
    for (Gpu& gpu : gpus_) gpu.links.assign(2, link);
    this->options_.devices = "gpu0,gpu1";
  }

  std::vector<Gpu>& gpus_ =
      this->machine_.emplace(Machine::read(/*with_gpus=*/false)).topology.gpus;
};

using OnGpuEngine = OnGpus<EngineTest>;

}  // namespace lockstep
