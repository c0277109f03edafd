// The products that processors with AVX-512's bf16 instructions compute in another way than
// avx512.cpp. Compiled with flags of its own: nothing in here may be used or emitted for use
// outside this file but the function at its end.
#include "engine/kernels/cpu/lanes_avx512.h"

// The rest is written over lanes_avx512.h and must come after it.
#include "engine/kernels/cpu/bytes_avx512.h"

// These are written over both.
#include "engine/kernels/cpu/bf16_avx512bf16.h"
#include "engine/kernels/cpu/operands_avx512.h"

// The algorithms.
#include "engine/kernels/cpu/matmul_bf16_dots.inl.h"
#include "engine/kernels/cpu/matmul_bf16_few.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable kTable = with_pairs({});

}  // namespace

const KernelTable& avx512bf16_pair_kernels() {
  return kTable;
}

}  // namespace lockstep
