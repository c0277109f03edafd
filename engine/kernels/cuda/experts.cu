#include "engine/kernels/cuda/gpu_code.h"
#include "engine/kernels/cuda/kernel_file.h"
// After it.
#include "engine/kernels/cuda/expert_product.inl.h"
#include "engine/kernels/cuda/experts.inl.h"
