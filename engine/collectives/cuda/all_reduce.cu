// The kernels of gpu_all_reduce.h for GPUs.
#include "engine/kernels/cuda/gpu_code.h"
#include "engine/kernels/cuda/kernel_file.h"
// Kernels come after what they are written in.
#include "engine/collectives/cuda/all_reduce.inl.h"

namespace lockstep {

const GpuCollectives& cuda_collectives() {
  static const GpuCollectives collectives = {&gpu_all_reduce, &gpu_meet, &gpu_sum_parts};
  return collectives;
}

}  // namespace lockstep
