// The kernels that go through AMX's matrix unit: products of bf16 activations, and attention to
// prompts. Compiled with flags of its own: nothing in here may be used or emitted for use outside
// this file but the function at its end.
#include "engine/kernels/cpu/lanes_avx512.h"

// The rest is written over lanes_avx512.h and must come after it.
#include "engine/kernels/cpu/bytes_avx512.h"

// These are written over both.
#include "engine/kernels/cpu/bf16_avx512bf16.h"
#include "engine/kernels/cpu/operands_avx512.h"

// And this over all of them.
#include "engine/kernels/cpu/attention_unit_avx512.h"

// The algorithms.
#include "engine/kernels/cpu/attention_unit.inl.h"
#include "engine/kernels/cpu/matmul_unit.inl.h"
#include "engine/kernels/cpu/matrix_unit_amx.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable kTable = with_unit_attention<MatrixUnit>(with_matrix_unit<MatrixUnit>({}));

}  // namespace

const KernelTable& amx_unit_kernels() {
  return kTable;
}

}  // namespace lockstep
