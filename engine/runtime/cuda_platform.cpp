#include "engine/runtime/gpu_platform.h"

namespace lockstep {

const GpuPlatform* cuda_platform() {
  static const GpuPlatform platform = {&cuda_kernels(), &cuda_collectives(), &open_cuda_device};
  return &platform;
}

}  // namespace lockstep
