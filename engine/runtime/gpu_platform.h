// Through what GPUs are used: their devices and their kernels. NVIDIA's by CUDA where the build has
// it; tests make one up.
#pragma once

#include <memory>

#include "engine/base/result.h"
#include "engine/collectives/gpu_all_reduce.h"
#include "engine/kernels/gpu_kernels.h"
#include "engine/machine/gpu_device.h"

namespace lockstep {

struct GpuPlatform {
  const GpuKernels* kernels = nullptr;
  const GpuCollectives* collectives = nullptr;
  Result<std::unique_ptr<GpuDevice>> (*open)(int gpu) = nullptr;
};

// Null in a build without CUDA (no_cuda_platform.cpp), which knows no GPU to open either.
const GpuPlatform* cuda_platform();

}  // namespace lockstep
