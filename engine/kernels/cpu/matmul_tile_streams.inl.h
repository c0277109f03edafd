// Generation: the matrix product with activations of the form kBf16 through a matrix unit for at
// most 16 tokens, whose time is that of reading and unpacking weights. Operands as in
// matmul_tiles.inl.h, which is for more tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/matmul_tiles.inl.h"

namespace lockstep {
namespace {

// Generation: at most 16 tokens, which all fit into one tile, for the price of one. kPanels panels,
// `apart` from one to the next. Each operand of weights is multiplied when the one after it has
// been unpacked. The panels take turns as often as their format allows.
template <typename Weights, typename Unit, size_t kPanels>
class UnitStreams {
 public:
  UnitStreams(const MatmulArguments& arguments, Unit& unit, size_t panel, size_t apart)
      : arguments_(arguments), unit_(unit), panel_(panel), apart_(apart) {}

  void run() {
    const size_t blocks = (arguments_.matrix.columns + kPairBlock - 1) / kPairBlock;
    zero<0>();
    for (size_t begin = 0; begin < blocks; begin += Weights::kUnitBlocks) {
      const size_t end = begin + Weights::kUnitBlocks;
      unpack<0>(begin, end < blocks ? end : blocks);
    }
    finish<0>(blocks * Weights::kParts);
  }

 private:
  // A block's operands are unpacked together.
  static constexpr size_t kBehind = Weights::kParts;
  static constexpr size_t kOperands = 2 * kBehind;

  template <size_t kPanel>
  void zero() {
    if constexpr (kPanel < kPanels) {
      unit_.template zero<kPanel>();
      zero<kPanel + 1>();
    }
  }

  // Unpacks blocks [begin, end) of panels kPanel and on, and multiplies all but the last.
  template <size_t kPanel>
  [[gnu::always_inline]] void unpack(size_t begin, size_t end) {
    if constexpr (kPanel < kPanels) {
      const size_t first = begin * Weights::kParts;
      Weights::unpack(
          arguments_.matrix, panel_ + kPanel * apart_, begin, end,
          [&] [[gnu::always_inline]] (size_t index, size_t pair, const auto& columns) {
            store_pairs(operand<kPanel>(first + index) + pair * kUnitRowBytes, columns);
          },
          [&] [[gnu::always_inline]] (size_t index) {
            if (first + index >= kBehind) multiply<kPanel>(first + index - kBehind);
          });
      unpack<kPanel + 1>(begin, end);
    }
  }

  // Multiplies what is left, and stores the sums.
  template <size_t kPanel>
  void finish(size_t operands) {
    if constexpr (kPanel < kPanels) {
      for (size_t i = operands - kBehind; i < operands; ++i) multiply<kPanel>(i);
      alignas(64) UnitSums sums;
      unit_.template store<kPanel>(sums, kUnitRowBytes);
      store_unit_sums(arguments_, panel_ + kPanel * apart_, 0, arguments_.token_count, sums);
      finish<kPanel + 1>(operands);
    }
  }

  template <size_t kPanel>
  [[gnu::always_inline]] void multiply(size_t index) {
    const std::byte* input = arguments_.input + index / Weights::kParts * kUnitRowBytes;
    unit_.template load<4 + kPanel>(input, arguments_.input_stride_bytes);
    unit_.template load<6 + kPanel>(operand<kPanel>(index), kUnitRowBytes);
    unit_.template multiply<kPanel, 4 + kPanel, 6 + kPanel>();
  }

  template <size_t kPanel>
  [[gnu::always_inline]] std::byte* operand(size_t index) {
    return operands_[kPanel][index % kOperands];
  }

  const MatmulArguments& arguments_;
  Unit& unit_;
  size_t panel_;
  size_t apart_;
  alignas(64) std::byte operands_[kPanels][kOperands][kUnitTileBytes];
};

template <typename Weights, typename Unit>
inline void multiply_streams(const MatmulArguments& arguments) {
  Unit unit;
  unit.shape(arguments.token_count, arguments.token_count);
  each_two_panels(
      arguments.panel_begin, arguments.panel_end,
      [&](size_t panel, size_t apart) {
        UnitStreams<Weights, Unit, 2>(arguments, unit, panel, apart).run();
      },
      [&](size_t panel) { UnitStreams<Weights, Unit, 1>(arguments, unit, panel, 0).run(); });
}

}  // namespace
}  // namespace lockstep
