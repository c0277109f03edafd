// The product of more than 8 tokens on NVIDIA's GPUs. The code is in the included files, which
// tests run on the host as well.
#include "engine/kernels/cuda/gpu_code.h"
#include "engine/kernels/cuda/kernel_file.h"
// Kernels come after what they are written in.
#include "engine/kernels/cuda/many_product.inl.h"
