// Tokens of a scan: every row of the table has the bits of the contract's order of operations,
// written out column by column and token by token, and leaves the same state, however many tokens
// come together.
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

constexpr size_t kScanTokens = 7;
constexpr float kSkip = 0.7F;

struct ScanHead {
  ScanHead(size_t rows, size_t columns)
      : dimension(rows),
        count(columns),
        stride(columns + 3),
        c(random_floats(kScanTokens * rows + 1, 1)),
        b(random_floats(kScanTokens * rows + 1, 2)),
        x(random_floats(kScanTokens * columns + 1, 3)),
        state(random_floats(rows * stride + 1, 4)),
        out(kScanTokens * columns + 1) {}

  static float decay(size_t token) { return 0.83F + 0.02F * static_cast<float>(token); }
  static float step(size_t token) { return 0.61F - 0.05F * static_cast<float>(token); }

  // None of the rows begins at a vector's border. `together`: tokens of a call.
  void compute(const KernelTable& table, size_t together) {
    for (size_t first = 0; first < kScanTokens; first += together) {
      std::vector<ScanToken> tokens;
      for (size_t token = first; token < std::min(kScanTokens, first + together); ++token) {
        tokens.push_back({.c = &c[1 + token * dimension],
                          .b = &b[1 + token * dimension],
                          .x = &x[1 + token * count],
                          .out = &out[1 + token * count],
                          .decay = decay(token),
                          .step = step(token)});
      }
      table.apply_scan({.tokens = tokens.data(),
                        .token_count = tokens.size(),
                        .dimension = dimension,
                        .skip = kSkip,
                        .state = &state[1],
                        .state_stride = stride,
                        .count = count});
    }
  }
  void compute_by_contract() {
    for (size_t token = 0; token < kScanTokens; ++token) {
      for (size_t column = 0; column < count; ++column) {
        const float change = step(token) * x[1 + token * count + column];
        float sum = 0;
        for (size_t i = 0; i < dimension; ++i) {
          const size_t place = 1 + token * dimension + i;
          cell(i, column) = std::fma(b[place], change, decay(token) * cell(i, column));
          sum = std::fma(c[place], cell(i, column), sum);
        }
        out[1 + token * count + column] = std::fma(kSkip, x[1 + token * count + column], sum);
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

  size_t dimension;
  size_t count;
  size_t stride;
  std::vector<float> c;
  std::vector<float> b;
  std::vector<float> x;
  std::vector<float> state;
  std::vector<float> out;
};

TEST(Scan, has_the_bits_of_its_contract_on_every_instruction_set_however_many_tokens_come) {
  for (const KernelTable* table : tables_that_run_here()) {
    for (const size_t dimension : {1U, 3U, 16U, 41U, 128U}) {
      for (const size_t count : {1U, 15U, 16U, 17U, 48U, 64U, 65U, 80U}) {
        ScanHead expected(dimension, count);
        expected.compute_by_contract();
        for (const size_t together : {1U, 2U, 3U, 7U}) {
          ScanHead head(dimension, count);
          head.compute(*table, together);
          EXPECT_EQ(head.bits(), expected.bits())
              << table->name << ", " << dimension << " x " << count << ", " << together;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
