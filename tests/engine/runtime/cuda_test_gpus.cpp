// NVIDIA's. Several ranks on one GPU are streams of it.
#include <cstdlib>
#include <string_view>
#include <vector>

#include "engine/machine/gpu.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

const GpuReading& machine_gpus() {
  static const GpuReading reading = [] {
    // Ranks that share a GPU wait for one another in kernels of different streams, which must not
    // stand in one queue.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    return read_gpus();
  }();
  return reading;
}

Result<std::unique_ptr<GpuDevice>> open_some_gpu(int rank) {
  const auto& gpus = machine_gpus().gpus;
  return cuda_platform()->open(gpus[static_cast<size_t>(rank) % gpus.size()].index);
}

}  // namespace

const GpuPlatform& test_gpus() {
  static const GpuPlatform platform = [] {
    GpuPlatform cuda = {cuda_platform()->kernels, cuda_platform()->collectives, &open_some_gpu,
                        cuda_platform()->open_matrix_library};
    cuda.let_launches_overlap = cuda_platform()->let_launches_overlap;
    // As the daemon's options of these names: a run without overlap, or under a sanitizer.
    const char* const wanted = std::getenv("LOCKSTEP_GPU_LAUNCH_OVERLAP");
    cuda.settings.launch_overlap = wanted == nullptr || std::string_view(wanted) != "false";
    if (const char* const seconds = std::getenv("LOCKSTEP_GPU_DEADLINE")) {
      cuda.settings.pass_deadline = std::chrono::seconds(std::atoi(seconds));
    }
    return cuda;
  }();
  return platform;
}

std::string no_test_gpus() {
  if (!machine_gpus().gpus.empty()) return {};
  return "no GPU: " + machine_gpus().absence;
}

GpuPlatform test_gpus_by_nccl() {
  GpuPlatform platform = test_gpus();
  platform.join = cuda_platform()->join;
  platform.join_absence = cuda_platform()->join_absence;
  platform.peer_access = false;
  // Lets two ranks share a GPU, on machines with a single one, where NCCL can.
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  return platform;
}

std::string no_nccl_for(size_t ranks) {
  if (std::string absence = nccl_absence(); !absence.empty()) return absence;
  if (machine_gpus().gpus.size() >= ranks) return {};
  const std::string alone = no_shared_gpus();
  return alone.empty() ? "" : "no GPU for each rank: " + alone;
}

// An emulated one is small, and slow.
size_t test_gpu_scale() {
  constexpr int kMultiprocessors = 16;  // the least of NVIDIA's own of these generations
  return machine_gpus().gpus.front().multiprocessor_count < kMultiprocessors ? 2 : 16;
}

}  // namespace lockstep
