#include "engine/kernels/gpu_launches.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {

const GpuPlatform* cuda_platform() {
  static const GpuPlatform platform = {.kernels = &cuda_kernels(),
                                       .collectives = &cuda_collectives(),
                                       .open = &open_cuda_device,
                                       .open_matrix_library = &open_cuda_matrix_library,
                                       .join = has_nccl() ? &NcclRanks::create : nullptr,
                                       .timed_sum_bytes_max = size_t{8} << 20U,
                                       .let_launches_overlap = &let_launches_overlap};
  return &platform;
}

}  // namespace lockstep
