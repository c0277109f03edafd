// Collectives of GPUs, their kernels played by the host.
#pragma once

#include "engine/collectives/gpu_all_reduce.h"

namespace lockstep {

const GpuCollectives& host_played_collectives();

}  // namespace lockstep
