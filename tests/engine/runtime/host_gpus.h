// The made-up GPUs of a test, as a platform: memory of the host, kernels played by the host.
#pragma once

#include "engine/runtime/gpu_platform.h"
#include "tests/engine/collectives/cuda/host_collectives.h"
#include "tests/engine/kernels/cuda/host_kernels.h"
#include "tests/engine/machine/host_device.h"

namespace lockstep {

inline const GpuPlatform& host_gpus() {
  static const GpuPlatform platform = {&host_played_kernels(), &host_played_collectives(),
                                       &open_host_device};
  return platform;
}

}  // namespace lockstep
