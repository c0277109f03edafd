// The scalar row of the kernel table: what every other row computes, on any machine.
#include "engine/kernels/cpu/lanes_scalar.h"

// The rest is written over lanes_scalar.h and must come after it.
#include "engine/kernels/cpu/bytes_scalar.h"

// These are written over both.
#include "engine/kernels/cpu/bf16_pairs.inl.h"
#include "engine/kernels/cpu/bf16_scalar.h"
#include "engine/kernels/cpu/table.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable kTable = make_row("scalar");

}  // namespace

const KernelTable& scalar_kernel_table() {
  return kTable;
}

}  // namespace lockstep
