#include "engine/kernels/cpu/lanes_scalar.h"

// The rest is written over lanes_scalar.h and must come after it.
#include "engine/kernels/cpu/bytes_scalar.h"

// These are written over both ...
#include "engine/kernels/cpu/bf16_scalar.h"
#include "engine/kernels/cpu/operands_scalar.h"
#include "tests/engine/kernels/attention_unit_scalar.h"

// ... and these over all.
#include "engine/kernels/cpu/attention_unit.inl.h"
#include "engine/kernels/cpu/matmul_unit.inl.h"
#include "tests/engine/kernels/matrix_unit_software.h"
#include "tests/engine/kernels/software_tiles.h"

namespace lockstep {
namespace {

constexpr KernelTable named() {
  KernelTable row{};
  row.name = "software_tiles";
  return row;
}

constexpr KernelTable kTable =
    with_unit_attention<SoftwareUnit>(with_matrix_unit<SoftwareUnit>(named()));

}  // namespace

const KernelTable& software_tiles_scalar() {
  return kTable;
}

}  // namespace lockstep
