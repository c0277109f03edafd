// Tokens of a gated delta net: every row of the table has the bits of the contract's order of
// operations, written out column by column and token by token, and leaves the same state, however
// many tokens come together.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/engine/kernels/paged_sequence.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

constexpr size_t kTokens = 7;

struct DeltaHead {
  // `by_row`: each row of the state has a decay of its own.
  DeltaHead(size_t rows, size_t columns, bool by_row)
      : has_decays(by_row),
        dimension(rows),
        count(columns),
        stride(columns + 3),
        q(random_floats(kTokens * rows + 1, 1)),
        k(random_floats(kTokens * rows + 1, 2)),
        v(random_floats(kTokens * columns + 1, 3)),
        decays(random_floats(kTokens * rows + 1, 5)),
        kept_k(kTokens * rows + 1),
        state(random_floats(rows * stride + 1, 4)),
        out(kTokens * columns + 1) {
    // Keys of length 1, without which seven tokens' states would grow beyond bounds.
    for (float& x : k) x /= std::sqrt(static_cast<float>(rows));
    for (float& x : decays) x = 1 / (1 + std::exp(-x));
    for (size_t i = 0; i < k.size(); ++i) kept_k[i] = k[i] * decays[i];
  }

  static float decay(size_t token) { return 0.83F + 0.02F * static_cast<float>(token); }
  static float beta(size_t token) { return 0.61F - 0.05F * static_cast<float>(token); }

  // None of the rows begins at a vector's border. `together`: tokens of a call.
  void compute(const KernelTable& table, size_t together) {
    for (size_t first = 0; first < kTokens; first += together) {
      std::vector<DeltaToken> tokens;
      for (size_t token = first; token < std::min(kTokens, first + together); ++token) {
        tokens.push_back({.q = &q[1 + token * dimension],
                          .k = &k[1 + token * dimension],
                          .v = &v[1 + token * count],
                          .out = &out[1 + token * count],
                          .decay = decay(token),
                          .beta = beta(token)});
        if (!has_decays) continue;
        tokens.back().decays = &decays[1 + token * dimension];
        tokens.back().kept_k = &kept_k[1 + token * dimension];
      }
      table.apply_delta({.tokens = tokens.data(),
                         .token_count = tokens.size(),
                         .dimension = dimension,
                         .state = &state[1],
                         .state_stride = stride,
                         .count = count});
    }
  }
  void compute_by_contract() {
    for (size_t token = 0; token < kTokens; ++token) {
      const float* const keys = &k[1 + token * dimension];
      const float* const summed = has_decays ? &kept_k[1 + token * dimension] : keys;
      const float* const own = &decays[1 + token * dimension];
      for (size_t column = 0; column < count; ++column) {
        float sum = 0;
        for (size_t i = 0; i < dimension; ++i) sum = std::fma(summed[i], cell(i, column), sum);
        if (!has_decays) sum *= decay(token);
        const float change = beta(token) * (v[1 + token * count + column] - sum);
        float result = 0;
        for (size_t i = 0; i < dimension; ++i) {
          const float factor = has_decays ? own[i] : decay(token);
          cell(i, column) = std::fma(keys[i], change, factor * cell(i, column));
          result = std::fma(q[1 + token * dimension + i], cell(i, column), result);
        }
        out[1 + token * count + column] = result;
      }
    }
  }
  // The tokens' results, and the state behind them.
  std::vector<uint32_t> bits() const {
    std::vector<uint32_t> all;
    for (const float value : out) all.push_back(std::bit_cast<uint32_t>(value));
    for (const float value : state) all.push_back(std::bit_cast<uint32_t>(value));
    return all;
  }
  float& cell(size_t row, size_t column) { return state[1 + row * stride + column]; }

  bool has_decays;
  size_t dimension;
  size_t count;
  size_t stride;
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<float> decays;
  std::vector<float> kept_k;
  std::vector<float> state;
  std::vector<float> out;
};

void expect_contract(const KernelTable& table, size_t dimension, size_t count, bool by_row) {
  DeltaHead expected(dimension, count, by_row);
  expected.compute_by_contract();
  for (const size_t together : {1U, 2U, 3U, 7U}) {
    DeltaHead head(dimension, count, by_row);
    head.compute(table, together);
    EXPECT_EQ(head.bits(), expected.bits())
        << table.name << ", " << dimension << " x " << count << ", " << together << " together"
        << (by_row ? ", decays by row" : "");
  }
}

TEST(DeltaNet, has_the_bits_of_its_contract_on_every_instruction_set_however_many_tokens_come) {
  for (const KernelTable* table : tables_that_run_here()) {
    for (const size_t dimension : {1U, 16U, 48U, 128U}) {
      for (const size_t count : {1U, 15U, 16U, 17U, 48U, 64U, 65U, 96U, 128U}) {
        expect_contract(*table, dimension, count, /*by_row=*/false);
        expect_contract(*table, dimension, count, /*by_row=*/true);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
