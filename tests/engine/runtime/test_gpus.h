// The GPUs that tests of ranks run on: which, the program that is linked decides.
#pragma once

#include <cstddef>
#include <string>

#include "engine/runtime/gpu_platform.h"

namespace lockstep {

// As many as a test asks for; where the machine has fewer, some are the same.
const GpuPlatform& test_gpus();
// Why there are none, to skip with; empty: there are.
std::string no_test_gpus();
// How many times larger than for GPUs that the host plays tests' matrices are.
size_t test_gpu_scale();

}  // namespace lockstep
