// The kernels of gpu_all_reduce.h for GPUs.
#include "engine/kernels/cuda/gpu_code.h"
// Kernels come after what they are written in.
#include "engine/collectives/cuda/all_reduce.inl.h"
