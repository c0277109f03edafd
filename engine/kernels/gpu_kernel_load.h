// Kernels are brought to a GPU before any of them runs. In builds with CUDA alone.
#pragma once

#include <cstddef>

#include "engine/base/result.h"

namespace lockstep {

struct KernelLoad {
  size_t kernel_count = 0;  // of ours
  size_t loaded_count = 0;  // of them by this call
};

// Loads all kernels of ours onto the calling thread's GPU (GpuDevice::use). CUDA by itself loads
// each when it is first launched, which can wait for what runs, and what runs may wait for that
// launch (CUDA Programming Guide, "Lazy Loading"). Those of NVIDIA's libraries it leaves as they
// are: there are hundreds of MiB of them. Fails with kMachineRefused; then they are loaded by and
// by.
Result<KernelLoad> load_cuda_kernels();

}  // namespace lockstep
