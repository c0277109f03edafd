// What a GPU does to rows of logits.
#include "engine/kernels/cuda/gpu_code.h"
// After it.
#include "engine/kernels/cuda/candidates.inl.h"
#include "engine/kernels/cuda/draw.inl.h"
