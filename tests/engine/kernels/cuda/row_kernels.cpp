// The kernels of everything that reads no weights, for the host's grid.
#include "tests/engine/kernels/cuda/gpu_code.h"
// After it.
#include "engine/kernels/cuda/attention.inl.h"
#include "engine/kernels/cuda/candidates.inl.h"
#include "engine/kernels/cuda/draw.inl.h"
#include "engine/kernels/cuda/heads.inl.h"
#include "engine/kernels/cuda/prompt_attention.inl.h"
#include "engine/kernels/cuda/read.inl.h"
#include "engine/kernels/cuda/rows.inl.h"
#include "engine/kernels/cuda/values.inl.h"
