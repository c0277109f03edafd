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
  multiply_prompt<Weights, Unit>(PlainProduct{arguments});
}

template <typename Weights, typename Unit>
[[gnu::noinline]] void gate_through_unit(const GatedArguments& arguments) {
  multiply_prompt<Weights, Unit>(GatedProduct{arguments});
}

// For each format that has products of bf16 activations what `kernel_of` gives for its weights.
template <typename Kernel, typename KernelOf>
constexpr std::array<Kernel, kFormatCount> for_each_weights(KernelOf kernel_of) {
  return each_format<Kernel>([&]<typename F>() -> Kernel {
    if constexpr (std::is_same_v<F, F32>) {
      return nullptr;
    } else {
      return kernel_of.template operator()<OperandsOfFormat<F>>();
    }
  });
}

// The row of the table with products of bf16 activations through `Unit`.
template <typename Unit>
constexpr KernelTable with_matrix_unit(KernelTable row) {
  row.has_tiles = true;
  row.matmul_bf16 = for_each_weights<MatmulKernel>([]<typename Weights>() -> MatmulKernel {
    return without_denormals<multiply_through_unit<Weights, Unit>>;
  });
  row.gated_bf16 = for_each_weights<GatedKernel>([]<typename Weights>() -> GatedKernel {
    return without_denormals<gate_through_unit<Weights, Unit>>;
  });
  return row;
}

}  // namespace
}  // namespace lockstep
