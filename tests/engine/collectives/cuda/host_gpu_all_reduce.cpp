// gpu_all_reduce.h with its kernels played by the host.
#include "tests/engine/kernels/cuda/gpu_code.h"
// Kernels come after what they are written in.
#include "engine/collectives/cuda/all_reduce.inl.h"
