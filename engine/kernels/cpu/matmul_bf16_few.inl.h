// The matrix product with activations of the form kBf16 for few tokens, on processors that multiply
// pairs of bf16 and have no matrix unit: the bits of matmul_bf16.inl.h, which it falls back on, at
// half the operations. Weights are unpacked to pairs in registers and multiplied at once.
//
// The form has a chain over the even columns and one over the odd, VDPBF16PS one over pairs. So
// each pair is multiplied twice, by a pair of activations whose second is zero and by one whose
// first is: what it adds for the zero is zero. That changes the sign of a sum that is zero, and a
// weight that is infinite makes a sum NaN that would be infinite: rows with such sums are computed
// anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/kernels/cpu/denormals.h"
#include "engine/kernels/cpu/matmul.inl.h"
#include "engine/kernels/cpu/matmul_bf16.inl.h"
#include "engine/kernels/cpu/tile_weights.inl.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// More tokens share what matmul_bf16.inl.h unpacks once for all of them.
constexpr size_t kFewPairTokens = 4;
// Pairs of all tokens together: 128 KiB on the stack, in the second cache.
constexpr size_t kSplitPairs = 16384;

// The activations' pairs, token after token: with the second column's place zero, and the first's.
struct SplitInputs {
  uint32_t first[kSplitPairs];
  uint32_t second[kSplitPairs];
};

// `pairs` of each token; what lies beyond a row's last column is zero.
inline void split_inputs(const MatmulArguments& arguments, size_t pairs, SplitInputs& inputs) {
  constexpr uint32_t kFirst = 0xFFFFU;
  for (size_t t = 0; t < arguments.token_count; ++t) {
    const std::byte* row = arguments.input + t * arguments.input_stride_bytes;
    for (size_t pair = 0; pair < pairs; ++pair) {
      uint32_t both = 0;
      std::memcpy(&both, row + pair * sizeof both, sizeof both);
      inputs.first[t * pairs + pair] = both & kFirst;
      inputs.second[t * pairs + pair] = both & ~kFirst;
    }
  }
}

// sums[t] += a panel's product with token t.
template <typename Operands, size_t kTokens>
[[gnu::always_inline]] inline void multiply_panel(const PackedMatrix& matrix, size_t panel,
                                                  size_t blocks, const SplitInputs& inputs,
                                                  F32x16 (&sums)[kTokens]) {
  constexpr size_t kParts = Operands::kParts;
  const size_t pairs = blocks * kBlockPairs;
  F32x16 chains[kParts][2][kTokens];
#pragma GCC unroll 16
  for (size_t i = 0; i < kParts * 2 * kTokens; ++i) {
    chains[i / (2 * kTokens)][i / kTokens % 2][i % kTokens] = zero();
  }
  Operands::unpack(
      matrix, panel, 0, blocks,
      [&] [[gnu::always_inline]] (size_t index, size_t pair, const auto& columns) {
        const WeightPair weights = weight_pair(columns);
        const size_t at = index / kParts * kBlockPairs + pair;
        auto& own = chains[index % kParts];
#pragma GCC unroll 4
        for (size_t t = 0; t < kTokens; ++t) {
          own[0][t] = dot(weights, broadcast_pair(inputs.first[t * pairs + at]), own[0][t]);
          own[1][t] = dot(weights, broadcast_pair(inputs.second[t * pairs + at]), own[1][t]);
        }
      },
      [&] [[gnu::always_inline]] (size_t index) {
        auto& own = chains[index % kParts];
#pragma GCC unroll 4
        for (size_t t = 0; t < kTokens; ++t) {
          sums[t] = add(sums[t], add(own[0][t], own[1][t]));
          own[0][t] = zero();
          own[1][t] = zero();
        }
      });
}

template <typename Weights>
[[gnu::noinline]] void multiply_panel_anew(const MatmulArguments& arguments, size_t panel) {
  PairScratch scratch;
  multiply_pair_group<Weights>(arguments, panel, panel + 1, 0, arguments.token_count, scratch);
}

template <typename Weights, typename Operands, size_t kTokens>
inline void multiply_few(const MatmulArguments& arguments, size_t blocks,
                         const SplitInputs& inputs) {
  if constexpr (kTokens > 1) {
    if (arguments.token_count < kTokens) {
      return multiply_few<Weights, Operands, kTokens - 1>(arguments, blocks, inputs);
    }
  }
  for (size_t panel = arguments.panel_begin; panel < arguments.panel_end; ++panel) {
    F32x16 sums[kTokens];
    for (F32x16& sum : sums) sum = zero();
    multiply_panel<Operands>(arguments.matrix, panel, blocks, inputs, sums);
    bool plain = true;
    for (const F32x16& sum : sums) plain = plain && all_finite_and_not_zero(sum);
    if (!plain) [[unlikely]] {
      multiply_panel_anew<Weights>(arguments, panel);
      continue;
    }
    for (size_t t = 0; t < kTokens; ++t) store_rows(arguments, panel, t, sums[t]);
  }
}

template <typename Weights, typename Operands>
[[gnu::noinline]] void multiply_split_inputs(const MatmulArguments& arguments, size_t blocks) {
  SplitInputs inputs;
  split_inputs(arguments, blocks * kBlockPairs, inputs);
  multiply_few<Weights, Operands, kFewPairTokens>(arguments, blocks, inputs);
}

template <typename Weights, typename Operands>
[[gnu::noinline]] void multiply_bf16_pairs(const MatmulArguments& arguments) {
  const size_t tokens = arguments.token_count;
  const size_t blocks = (arguments.matrix.columns + kPairBlock - 1) / kPairBlock;
  if (tokens > kFewPairTokens || tokens * blocks * kBlockPairs > kSplitPairs) {
    return multiply_bf16<Weights>(arguments);
  }
  if (tokens > 0) multiply_split_inputs<Weights, Operands>(arguments, blocks);
}

// The row of the table with the products of pairs.
constexpr KernelTable with_pairs(KernelTable row) {
  row.matmul_bf16 = each_format<MatmulKernel>([]<typename F>() -> MatmulKernel {
    if constexpr (std::is_same_v<F, F32>) {
      return nullptr;
    } else {
      return without_denormals<multiply_bf16_pairs<WeightsOfFormat<F>, OperandsOfFormat<F>>>;
    }
  });
  row.matmul_bf16_dots[static_cast<size_t>(Format::kBf16)] = kMatmulBf16Dots;
  return row;
}

}  // namespace
}  // namespace lockstep
