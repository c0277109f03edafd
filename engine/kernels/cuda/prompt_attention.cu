#include "engine/kernels/cuda/gpu_code.h"
#include "engine/kernels/cuda/kernel_file.h"
// After it.
#include "engine/kernels/cuda/prompt_attention.inl.h"
