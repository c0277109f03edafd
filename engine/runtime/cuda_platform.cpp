#include "engine/runtime/gpu_platform.h"

namespace lockstep {

const GpuPlatform* cuda_platform() {
  static const GpuPlatform platform = {&cuda_kernels(), &cuda_collectives(), &open_cuda_device,
                                       &open_cuda_matrix_library};
  return &platform;
}

}  // namespace lockstep
