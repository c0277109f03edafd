// Weights on NVIDIA's GPUs: packing, and the product of generated tokens. The code is in the
// included files, which tests run on the host as well. No GPU has run it yet.
#include "engine/kernels/cuda/gpu_code.h"
#include "engine/kernels/cuda/kernel_file.h"
// Kernels come after what they are written in.
#include "engine/kernels/cuda/pack_rows.inl.h"
#include "engine/kernels/cuda/product.inl.h"
