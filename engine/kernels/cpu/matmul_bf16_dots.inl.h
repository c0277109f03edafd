// The matrix product with activations of the form kBf16Dots, once for all instruction sets: those
// of matmul_floats.inl.h with two columns at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/denormals.h"
#include "engine/kernels/cpu/matmul_floats.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// Columns k and k + 1 of a BF16 panel.
struct Bf16Pair {
  static constexpr size_t kColumns = 2;
  static constexpr size_t kBytes = kPanelRows * sizeof(uint16_t);
  using Weights = WeightPair;
  using Inputs = InputPair;
  static Weights read(const std::byte* p) {
    return load_weight_pair(reinterpret_cast<const uint16_t*>(p));
  }
  static Weights read_last(const std::byte* p) {
    return load_last_weights(reinterpret_cast<const uint16_t*>(p));
  }
  static Inputs inputs(const std::byte* row, size_t k) {
    return broadcast_pair(row + k * sizeof(uint16_t));
  }
  static F32x16 multiply(Weights weights, Inputs inputs, F32x16 sum) {
    return dot(weights, inputs, sum);
  }
};

[[gnu::noinline]] void multiply_bf16_dots(const MatmulArguments& arguments) {
  matmul_floats<Bf16Pair>(arguments);
}

constexpr MatmulKernel kMatmulBf16Dots = without_denormals<multiply_bf16_dots>;

}  // namespace
}  // namespace lockstep
