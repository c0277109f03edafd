// Tokens of a scan: every row of the table has the bits of the contract's order of operations,
// written out column by column and token by token, and leaves the same state, however many tokens
// come together. Where rows decay by themselves, the scalar row is near what float64 computes, and
// the others have its bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

// Heads of one column each. Steps are of both signs, and decays from none to all but all.
struct ScanHeads {
  ScanHeads(size_t rows, size_t heads)
      : dimension(rows),
        count(heads),
        stride(heads + 3),
        c(random_floats(kScanTokens * rows + 1, 1)),
        b(random_floats(kScanTokens * rows + 1, 2)),
        x(random_floats(kScanTokens * heads + 1, 3)),
        steps(random_floats(kScanTokens * heads + 1, 4)),
        decay(random_floats(rows * stride + 1, 5)),
        bias(random_floats(heads + 1, 6)),
        skip(random_floats(heads + 1, 7)),
        state(random_floats(rows * stride + 1, 8)),
        step(kScanTokens * heads + 1),
        out(kScanTokens * heads + 1) {
    for (float& value : steps) value *= 9;
    for (float& value : decay) value = -4 * std::abs(value);
  }

  // None of the rows begins at a vector's border. `together`: tokens of a call.
  void compute(const KernelTable& table, size_t together) {
    for (size_t first = 0; first < kScanTokens; first += together) {
      std::vector<ScanHeadsToken> tokens;
      for (size_t token = first; token < std::min(kScanTokens, first + together); ++token) {
        tokens.push_back({.c = &c[1 + token * dimension],
                          .b = &b[1 + token * dimension],
                          .x = &x[1 + token * count],
                          .steps = &steps[1 + token * count],
                          .step = &step[1 + token * count],
                          .out = &out[1 + token * count]});
      }
      table.apply_scan_heads({.tokens = tokens.data(),
                              .token_count = tokens.size(),
                              .dimension = dimension,
                              .decay = &decay[1],
                              .decay_stride = stride,
                              .bias = &bias[1],
                              .skip = &skip[1],
                              .state = &state[1],
                              .state_stride = stride,
                              .count = count});
    }
  }
  // The tokens' results, and the state behind them.
  std::vector<float> values() const {
    std::vector<float> all = out;
    all.insert(all.end(), state.begin(), state.end());
    return all;
  }
  std::vector<uint32_t> bits() const {
    std::vector<uint32_t> all;
    for (const float value : values()) all.push_back(std::bit_cast<uint32_t>(value));
    return all;
  }
  // Both in float64, and how large the terms are that each is the sum of.
  std::vector<std::array<double, 2>> exact_values() const;

  size_t dimension;
  size_t count;
  size_t stride;
  std::vector<float> c;
  std::vector<float> b;
  std::vector<float> x;
  std::vector<float> steps;
  std::vector<float> decay;
  std::vector<float> bias;
  std::vector<float> skip;
  std::vector<float> state;
  std::vector<float> step;
  std::vector<float> out;
};

std::vector<std::array<double, 2>> ScanHeads::exact_values() const {
  std::vector<std::array<double, 2>> all;
  for (const float value : values()) all.push_back({value, std::abs(value)});
  const auto cell = [&](size_t row, size_t head) -> std::array<double, 2>& {
    return all[out.size() + 1 + row * stride + head];
  };
  for (size_t token = 0; token < kScanTokens; ++token) {
    for (size_t head = 0; head < count; ++head) {
      const size_t place = 1 + token * count + head;
      const double t = std::log1p(std::exp(double{steps[place]} + bias[1 + head]));
      const double skipped = double{skip[1 + head]} * x[place];
      all[place] = {skipped, std::abs(skipped)};
      for (size_t i = 0; i < dimension; ++i) {
        const double kept = std::exp(decay[1 + i * stride + head] * t);
        const double change = b[1 + token * dimension + i] * t * x[place];
        auto& [value, terms] = cell(i, head);
        value = kept * value + change;
        terms = kept * terms + std::abs(change);
        const double factor = c[1 + token * dimension + i];
        all[place][0] += factor * value;
        all[place][1] += std::abs(factor) * terms;
      }
    }
  }
  return all;
}

TEST(ScanOfHeads, is_near_float64) {
  for (const size_t dimension : {1U, 16U, 41U}) {
    ScanHeads head(dimension, 17);
    const std::vector<std::array<double, 2>> exact = head.exact_values();
    head.compute(scalar_kernel_table(), kScanTokens);
    const std::vector<float> values = head.values();
    for (size_t i = 0; i < values.size(); ++i) {
      // Each token adds the step's units, the decay's, whose argument may be 40, and the sums'.
      const double units = 16 + 40 * kScanTokens + static_cast<double>(dimension);
      EXPECT_LE(std::abs(values[i] - exact[i][0]), exact[i][1] * units * 0x1p-24)
          << dimension << " at " << i;
    }
  }
}

TEST(ScanOfHeads,
     has_the_bits_of_the_scalar_row_on_every_instruction_set_however_many_tokens_come) {
  for (const KernelTable* table : tables_that_run_here()) {
    for (const size_t dimension : {1U, 3U, 16U, 41U, 128U}) {
      for (const size_t count : {1U, 15U, 16U, 17U, 32U, 65U}) {
        ScanHeads expected(dimension, count);
        expected.compute(scalar_kernel_table(), 1);
        for (const size_t together : {1U, 2U, 3U, 7U}) {
          ScanHeads head(dimension, count);
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
