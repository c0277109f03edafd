// The kernels that read weights, for the host's grid.
#include "tests/engine/kernels/cuda/gpu_code.h"
// After it.
#include "engine/kernels/cuda/embedding.inl.h"
#include "engine/kernels/cuda/expert_product.inl.h"
#include "engine/kernels/cuda/experts.inl.h"
#include "engine/kernels/cuda/finish_panel.inl.h"
#include "engine/kernels/cuda/many_product.inl.h"
#include "engine/kernels/cuda/pack_rows.inl.h"
#include "engine/kernels/cuda/product.inl.h"
#include "engine/kernels/cuda/unpack_rows.inl.h"
