// The AVX2 row of the kernel table. Compiled with flags of its own: nothing in here may be used or
// emitted for use outside this file but the function at its end.
#include "engine/kernels/cpu/lanes_avx2.h"

// The rest is written over lanes_avx2.h and must come after it.
#include "engine/kernels/cpu/bytes_avx2.h"

// These are written over both.
#include "engine/kernels/cpu/attention.inl.h"
#include "engine/kernels/cpu/elementwise.inl.h"
#include "engine/kernels/cpu/matmul.inl.h"
#include "engine/kernels/cpu/matmul_floats.inl.h"
#include "engine/kernels/cpu/quantize.inl.h"
#include "engine/kernels/cpu/rows.h"

namespace lockstep {
namespace {

constexpr KernelTable kTable = {
    .name = "avx2",
    .matmul =
        {
            matmul_floats<F32Column>,
            matmul_floats<F16Column>,
            matmul_floats<Bf16Column>,
            matmul_quantized<Q8_0Tile>,
            matmul_quantized<Q4_0Tile>,
            matmul_quantized<Q4_1Tile>,
            matmul_quantized<Q5_0Tile>,
            matmul_quantized<Q5_1Tile>,
            matmul_quantized<Q4_KTile>,
            matmul_quantized<Q5_KTile>,
            matmul_quantized<Q6_KTile>,
        },
    .quantize = quantize,
    .rms_norm = rms_norm,
    .silu_multiply = silu_multiply,
    .attend = attend,
    .append_kv = append_kv,
};

}  // namespace

const KernelTable& avx2_kernel_table() {
  return kTable;
}

}  // namespace lockstep
