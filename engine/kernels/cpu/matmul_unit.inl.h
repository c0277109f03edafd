// The matrix product with activations of the form kBf16 through a matrix unit, for any number of
// tokens.
#pragma once

#include "engine/kernels/cpu/denormals.h"
#include "engine/kernels/cpu/matmul_tile_streams.inl.h"
#include "engine/kernels/cpu/matmul_tiles.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

template <typename Weights, typename Unit>
[[gnu::noinline]] void multiply_through_unit(const MatmulArguments& arguments) {
  if (arguments.token_count == 0) return;
  if (arguments.token_count <= kUnitRows) return multiply_streams<Weights, Unit>(arguments);
  multiply_prompt<Weights, Unit>(arguments);
}

// The row of the table with products of bf16 activations through `Unit`.
template <typename Unit>
constexpr KernelTable with_matrix_unit(KernelTable row) {
  const auto through_unit = []<typename Weights>() -> MatmulKernel {
    return without_denormals<multiply_through_unit<Weights, Unit>>;
  };
  row.has_tiles = true;
  row.matmul_bf16 = {
      nullptr,
      through_unit.template operator()<F16Operands>(),
      through_unit.template operator()<Bf16Operands>(),
      through_unit.template operator()<QuantizedOperands<Q8_0Tile>>(),
      through_unit.template operator()<QuantizedOperands<Q4_0Tile>>(),
      through_unit.template operator()<QuantizedOperands<Q4_1Tile>>(),
      through_unit.template operator()<QuantizedOperands<Q5_0Tile>>(),
      through_unit.template operator()<QuantizedOperands<Q5_1Tile>>(),
      through_unit.template operator()<QuantizedOperands<Q4_KTile>>(),
      through_unit.template operator()<QuantizedOperands<Q5_KTile>>(),
      through_unit.template operator()<QuantizedOperands<Q6_KTile>>(),
  };
  return row;
}

}  // namespace
}  // namespace lockstep
