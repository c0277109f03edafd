// Generation: the matrix product with activations of the form kBf16 through a matrix unit for at
// most 16 tokens, whose time is that of reading and unpacking weights. Operands as in
// matmul_tiles.inl.h, which is for more tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/matmul_tiles.inl.h"

namespace lockstep {
namespace {

// Generation: panels walked side by side, so that two streams of memory are in flight.
constexpr size_t kUnitStreams = 2;

// Generation: at most 16 tokens, which all fit into one tile, for the price of one. Each block of a
// strip is unpacked while the unit multiplies the same block of the strip before. A strip is as
// short as the format allows, so that the panels' streams of memory are read by turns often: with
// one block Q8_0 is read at 14.0 GB/s, with eight at 12.2; Q4_0 at 9.3 instead of 8.8.
template <typename Weights, typename Unit, size_t kPanels>
class UnitStreams {
 public:
  UnitStreams(const MatmulArguments& arguments, Unit& unit, size_t panel)
      : arguments_(arguments), unit_(unit), panel_(panel) {}

  void run() {
    const size_t blocks = (arguments_.matrix.columns + kPairBlock - 1) / kPairBlock;
    zero<0>();
    size_t begin = 0;
    while (begin < blocks) {
      const size_t left = blocks - begin;
      const size_t count = left < kMostBlocks ? left : kMostBlocks;
      advance<0>(begin, begin + count);
      before_ = {begin * kPairBlock, count, Weights::kParts};
      buffer_ ^= 1U;
      begin += count;
    }
    advance<0>(begin, begin);
    store<0>();
  }

 private:
  static constexpr size_t kMostBlocks = Weights::kUnitBlocks;
  // One panel's strip.
  using Operands = std::byte[kMostBlocks * Weights::kParts][kUnitTileBytes];

  template <size_t kPanel>
  void zero() {
    if constexpr (kPanel < kPanels) {
      unit_.template zero<kPanel>();
      zero<kPanel + 1>();
    }
  }

  // Unpacks blocks [begin, end) of panels kPanel and on, and multiplies the strip before.
  template <size_t kPanel>
  [[gnu::always_inline]] void advance(size_t begin, size_t end) {
    if constexpr (kPanel < kPanels) {
      const size_t before = before_.operands();
      size_t multiplied = 0;
      const auto multiply_one = [&] [[gnu::always_inline]] {
        if (multiplied < before) multiply<kPanel>(multiplied++);
      };
      if (begin < end) {
        Weights::unpack(arguments_.matrix, panel_ + kPanel, begin, end,
                        store_into(weights_[buffer_][kPanel]),
                        [&] [[gnu::always_inline]] (size_t) { multiply_one(); });
      }
      while (multiplied < before) multiply_one();
      advance<kPanel + 1>(begin, end);
    }
  }

  template <size_t kPanel>
  [[gnu::always_inline]] void multiply(size_t operand) {
    unit_.template load<4 + kPanel>(before_.input(arguments_, 0, operand),
                                    arguments_.input_stride_bytes);
    unit_.template load<6 + kPanel>(weights_[buffer_ ^ 1U][kPanel][operand], kUnitRowBytes);
    unit_.template multiply<kPanel, 4 + kPanel, 6 + kPanel>();
  }

  template <size_t kPanel>
  void store() {
    if constexpr (kPanel < kPanels) {
      alignas(64) UnitSums sums;
      unit_.template store<kPanel>(sums, kUnitRowBytes);
      store_unit_sums(arguments_, panel_ + kPanel, 0, arguments_.token_count, sums);
      store<kPanel + 1>();
    }
  }

  const MatmulArguments& arguments_;
  Unit& unit_;
  size_t panel_;
  UnitStrip before_ = {0, 0, Weights::kParts};  // unpacked, not yet multiplied
  unsigned buffer_ = 0;                         // what is unpacked into
  alignas(64) Operands weights_[2][kPanels];
};

template <typename Weights, typename Unit>
inline void multiply_streams(const MatmulArguments& arguments) {
  Unit unit;
  unit.shape(arguments.token_count, arguments.token_count);
  size_t panel = arguments.panel_begin;
  for (; panel + kUnitStreams <= arguments.panel_end; panel += kUnitStreams) {
    UnitStreams<Weights, Unit, kUnitStreams>(arguments, unit, panel).run();
  }
  for (; panel < arguments.panel_end; ++panel) {
    UnitStreams<Weights, Unit, 1>(arguments, unit, panel).run();
  }
}

}  // namespace
}  // namespace lockstep
