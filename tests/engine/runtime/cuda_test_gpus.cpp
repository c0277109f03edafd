// NVIDIA's. Several ranks on one GPU are streams of it.
#include "engine/machine/gpu.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

const GpuReading& machine_gpus() {
  static const GpuReading reading = read_gpus();
  return reading;
}

Result<std::unique_ptr<GpuDevice>> open_some_gpu(int rank) {
  const auto& gpus = machine_gpus().gpus;
  return open_cuda_device(gpus[static_cast<size_t>(rank) % gpus.size()].index);
}

}  // namespace

const GpuPlatform& test_gpus() {
  static const GpuPlatform platform = {cuda_platform()->kernels, cuda_platform()->collectives,
                                       &open_some_gpu, cuda_platform()->open_matrix_library};
  return platform;
}

std::string no_test_gpus() {
  if (!machine_gpus().gpus.empty()) return {};
  return "no GPU: " + machine_gpus().absence;
}

size_t test_gpu_scale() {
  return 16;
}

}  // namespace lockstep
