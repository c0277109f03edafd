// The AVX2 row of the kernel table. Compiled with flags of its own: nothing in here may be used or
// emitted for use outside this file but the function at its end.
#include "engine/kernels/cpu/lanes_avx2.h"

// The rest is written over lanes_avx2.h and must come after it.
#include "engine/kernels/cpu/bytes_avx2.h"

// These are written over both.
#include "engine/kernels/cpu/bf16_avx2.h"
#include "engine/kernels/cpu/bf16_pairs.inl.h"
#include "engine/kernels/cpu/table.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable kTable = make_row("avx2");

}  // namespace

const KernelTable& avx2_kernel_table() {
  return kTable;
}

}  // namespace lockstep
