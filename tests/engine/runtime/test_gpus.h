// The GPUs that tests of ranks run on: which, the program that is linked decides.
#pragma once

#include <cstddef>
#include <string>

#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {

// As many as a test asks for; where the machine has fewer, some are the same.
const GpuPlatform& test_gpus();
// Why there are none, to skip with; empty: there are.
std::string no_test_gpus();
// How many times larger than for simulated GPUs tests' matrices are.
size_t test_gpu_scale();

// The same GPUs as though none reached another's memory: they are joined by NCCL.
GpuPlatform test_gpus_by_nccl();
// Why so many ranks cannot be joined, to skip with; empty: they can.
std::string no_nccl_for(size_t ranks);

}  // namespace lockstep
