// Kernels on rows of logits: the search for candidates, and draws.
#include "engine/kernels/cuda/gpu_code.h"
#include "engine/kernels/cuda/kernel_file.h"
// After it.
#include "engine/kernels/cuda/candidates.inl.h"
#include "engine/kernels/cuda/draw.inl.h"
