// The table of GPU kernels for tests: the same code, run on the host (HostGrid) when it is
// launched; memory is the host's.
#pragma once

#include "engine/kernels/gpu_kernels.h"

namespace lockstep {

const GpuKernels& host_kernels();

}  // namespace lockstep
