// A token of a gated delta net: every row of the table has the bits of the contract's order of
// operations, written out column by column, and leaves the same state.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/engine/kernels/paged_sequence.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

constexpr float kDecay = 0.83F;
constexpr float kBeta = 0.61F;

struct DeltaToken {
  DeltaToken(size_t rows, size_t columns)
      : dimension(rows),
        count(columns),
        stride(columns + 3),
        q(random_floats(rows + 1, 1)),
        k(random_floats(rows + 1, 2)),
        v(random_floats(columns + 1, 3)),
        state(random_floats(rows * stride + 1, 4)) {}

  // None of the rows begins at a vector's border.
  std::vector<float> compute(const KernelTable& table) {
    std::vector<float> out(count);
    table.apply_delta({.q = q.data() + 1,
                       .k = k.data() + 1,
                       .v = v.data() + 1,
                       .decay = kDecay,
                       .beta = kBeta,
                       .dimension = dimension,
                       .state = state.data() + 1,
                       .state_stride = stride,
                       .count = count},
                      out.data());
    return out;
  }
  std::vector<float> compute_by_contract() {
    std::vector<float> out(count);
    for (size_t column = 0; column < count; ++column) {
      float sum = 0;
      for (size_t i = 0; i < dimension; ++i) sum = std::fma(k[1 + i], cell(i, column), sum);
      const float change = kBeta * (v[1 + column] - kDecay * sum);
      float result = 0;
      for (size_t i = 0; i < dimension; ++i) {
        cell(i, column) = std::fma(k[1 + i], change, kDecay * cell(i, column));
        result = std::fma(q[1 + i], cell(i, column), result);
      }
      out[column] = result;
    }
    return out;
  }
  float& cell(size_t row, size_t column) { return state[1 + row * stride + column]; }

  size_t dimension;
  size_t count;
  size_t stride;
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<float> state;
};

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

TEST(DeltaNet, has_the_bits_of_its_contract_on_every_instruction_set) {
  for (const KernelTable* table : tables_that_run_here()) {
    for (const size_t dimension : {1U, 16U, 48U, 128U}) {
      for (const size_t count : {1U, 15U, 16U, 17U, 64U, 65U, 96U, 128U}) {
        DeltaToken token(dimension, count);
        DeltaToken expected(dimension, count);
        const std::vector<float> out = expected.compute_by_contract();
        EXPECT_EQ(bits_of(token.compute(*table)), bits_of(out))
            << table->name << ", " << dimension << " x " << count;
        EXPECT_EQ(bits_of(token.state), bits_of(expected.state)) << table->name;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
