// Simulated ones: the host's memory, kernels run on the host, a fake NCCL.
#include "tests/engine/collectives/cuda/host_collectives.h"
#include "tests/engine/collectives/cuda/host_nccl.h"
#include "tests/engine/kernels/cuda/host_kernels.h"
#include "tests/engine/kernels/cuda/host_matrix_library.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {

const GpuPlatform& test_gpus() {
  static const GpuPlatform platform = {&host_kernels(), &host_collectives(), &open_host_device,
                                       &open_host_matrix_library};
  return platform;
}

std::string no_test_gpus() {
  return {};
}

GpuPlatform test_gpus_by_nccl() {
  GpuPlatform platform = test_gpus();
  platform.join = &join_host_gpus;
  platform.make_nccl_id = &make_host_nccl_id;
  platform.join_among = &join_host_gpus_among;
  platform.nccl_version = [] { return std::string("of tests"); };
  platform.peer_access = false;
  return platform;
}

std::string no_nccl_for(size_t) {
  return {};
}

size_t test_gpu_scale() {
  return 1;
}

}  // namespace lockstep
