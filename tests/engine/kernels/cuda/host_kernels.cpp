#include "tests/engine/kernels/cuda/host_kernels.h"

namespace lockstep {

const GpuKernels& host_kernels() {
  static constexpr GpuKernels kKernels = linked_gpu_kernels("host");
  return kKernels;
}

}  // namespace lockstep
