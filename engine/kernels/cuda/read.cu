#include "engine/kernels/cuda/gpu_code.h"
// After it.
#include "engine/kernels/cuda/read.inl.h"
