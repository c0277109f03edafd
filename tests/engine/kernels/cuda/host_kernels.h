// The table of GPU kernels for tests: the same code, played by the host (HostGrid) when it is
// launched; memory is the host's.
#pragma once

#include "engine/kernels/gpu_kernels.h"

namespace lockstep {

const GpuKernels& host_played_kernels();

}  // namespace lockstep
