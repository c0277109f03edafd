// Products of prompted tokens on NVIDIA's GPUs: what comes before and after those of cuBLASLt. No
// GPU has run it yet.
#include "engine/kernels/cuda/gpu_code.h"
#include "engine/kernels/cuda/kernel_file.h"
// Kernels come after what they are written in.
#include "engine/kernels/cuda/finish_panel.inl.h"
#include "engine/kernels/cuda/unpack_rows.inl.h"
