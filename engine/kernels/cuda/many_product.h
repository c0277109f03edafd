// The product of more than 8 tokens, of which activations lie in shared memory: a part of
// gpu_product(), compiled by itself. In namespaces of the .cu files, and of the tests.
#pragma once

#include <cstddef>

#include "engine/kernels/gpu_product.h"

namespace lockstep {

// `window`: as window_of() gives it; of its parts [begin, end), which are of one format, not F32.
void multiply_many_tokens(void* stream, const GpuProduct& window, size_t begin, size_t end);

}  // namespace lockstep
