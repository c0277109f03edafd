#include "engine/kernels/gpu_kernels.h"

namespace lockstep {

const GpuKernels& cuda_kernels() {
  static constexpr GpuKernels kKernels = linked_gpu_kernels("cuda");
  return kKernels;
}

}  // namespace lockstep
