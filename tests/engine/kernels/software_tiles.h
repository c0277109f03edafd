// Rows that only tests have: the kernels for a matrix unit, as they are, over a model
// of such a unit in plain C++. So what they compute is tested where there is none.
#pragma once

#include "engine/kernels/kernel_table.h"

namespace lockstep {

// The tables have only the products with bf16 activations, and the first attention in bf16.
const KernelTable& software_tiles_scalar();
// For machines with AVX-512, VNNI, VBMI and bf16.
const KernelTable& software_tiles_avx512();

}  // namespace lockstep
