// Stands in for cuda_platform.cpp in a build without CUDA.
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {

const GpuPlatform* cuda_platform() {
  return nullptr;
}

}  // namespace lockstep
