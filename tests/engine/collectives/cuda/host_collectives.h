// Collectives of GPUs, their kernels run on the host.
#pragma once

#include "engine/collectives/gpu_all_reduce.h"

namespace lockstep {

const GpuCollectives& host_collectives();

}  // namespace lockstep
