#include "engine/base/log.h"
#include "engine/kernels/gpu_kernel_load.h"
#include "engine/kernels/gpu_launches.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {
namespace {

Result<std::unique_ptr<GpuDevice>> open_with_kernels(int gpu) {
  auto device = open_cuda_device(gpu);
  if (!device) return device;
  if (const auto loaded = load_cuda_kernels(); loaded) {
    spdlog::debug("gpu{}: {} of {} kernels were loaded", gpu, loaded->loaded_count,
                  loaded->kernel_count);
  } else {
    spdlog::warn("gpu{}: {}; each is loaded when it is first used, which may make a pass late", gpu,
                 loaded.error().message);
  }
  return device;
}

}  // namespace

const GpuPlatform* cuda_platform() {
  static const GpuPlatform platform = {.kernels = &cuda_kernels(),
                                       .collectives = &cuda_collectives(),
                                       .open = &open_with_kernels,
                                       .open_matrix_library = &open_cuda_matrix_library,
                                       .find_matrix_library = &find_cuda_matrix_library,
                                       .join = &NcclRanks::create,
                                       .join_absence = &nccl_absence,
                                       .make_nccl_id = &NcclRanks::make_id,
                                       .join_among = &NcclRanks::create_among,
                                       .nccl_version = &nccl_version,
                                       .timed_sum_bytes_max = size_t{8} << 20U,
                                       .let_launches_overlap = &let_launches_overlap};
  return &platform;
}

}  // namespace lockstep
