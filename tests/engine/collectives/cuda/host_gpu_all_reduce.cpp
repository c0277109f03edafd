// gpu_all_reduce.h with its kernels run on the host.
#include "tests/engine/kernels/cuda/gpu_code.h"
// Kernels come after what they are written in.
#include "engine/collectives/cuda/all_reduce.inl.h"
#include "tests/engine/collectives/cuda/host_collectives.h"

namespace lockstep {

const GpuCollectives& host_collectives() {
  static const GpuCollectives collectives = {&gpu_all_reduce, &gpu_meet, &gpu_sum_parts};
  return collectives;
}

}  // namespace lockstep
