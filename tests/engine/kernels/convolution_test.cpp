// The causal convolution of one token: every row of the table has the bits of the contract's order
// of operations, written out element by element.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/graph/graph.h"
#include "tests/engine/kernels/paged_sequence.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

struct Case {
  size_t columns = 0;
  size_t taps = 0;
  size_t missing = 0;  // so many tokens before are not there
  bool is_gated = false;
  bool has_bias = false;
};

// None of the rows begins at a vector's border.
class Rows {
 public:
  Rows(size_t count, size_t columns, unsigned seed)
      : stride_(columns + 1), values_(random_floats(count * stride_ + 1, seed)) {}
  const float* at(size_t row) const { return values_.data() + 1 + row * stride_; }
  float* at(size_t row) { return values_.data() + 1 + row * stride_; }
  size_t stride() const { return stride_; }

 private:
  size_t stride_;
  std::vector<float> values_;
};

class ConvolvedToken {
 public:
  explicit ConvolvedToken(const Case& test)
      : test_(test),
        x_(3, test.columns, 1),
        factors_(test.taps, test.columns, 2),
        earlier_(test.taps, test.columns, 3),
        bias_(1, test.columns, 4) {
    for (size_t tap = 0; tap + 1 < test.taps; ++tap) {
      pointers_.push_back(tap < test.missing ? nullptr : earlier_.at(tap));
    }
    if (test.missing > 0) std::fill_n(earlier_.at(0), earlier_.stride() - 1, kNan);
  }

  // The new input takes the place of the earliest one, as it does in a ring.
  std::vector<float> compute(const KernelTable& table) {
    std::vector<float> out(test_.columns + 1, kNan);
    table.convolve({.x = x_.at(0),
                    .before = test_.is_gated ? x_.at(1) : nullptr,
                    .behind = test_.is_gated ? x_.at(2) : nullptr,
                    .factors = factors_.at(0),
                    .factor_stride = factors_.stride(),
                    .taps = test_.taps,
                    .bias = test_.has_bias ? bias_.at(0) : nullptr,
                    .earlier = pointers_.data(),
                    .input = earlier_.at(0),
                    .count = test_.columns},
                   out.data());
    EXPECT_TRUE(std::isnan(out.back())) << "written behind the end";
    out.pop_back();
    return out;
  }
  std::vector<float> inputs() const { return {earlier_.at(0), earlier_.at(0) + test_.columns}; }

  float expected_input(size_t column) const {
    return test_.is_gated ? x_.at(1)[column] * x_.at(0)[column] : x_.at(0)[column];
  }
  // Before compute().
  float expected(size_t column) const {
    float sum = test_.has_bias ? bias_.at(0)[column] : 0.0F;
    for (size_t tap = test_.missing; tap + 1 < test_.taps; ++tap) {
      sum = std::fma(factors_.at(tap)[column], earlier_.at(tap)[column], sum);
    }
    sum = std::fma(factors_.at(test_.taps - 1)[column], expected_input(column), sum);
    return test_.is_gated ? x_.at(2)[column] * sum : sum;
  }

 private:
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

  Case test_;
  Rows x_;
  Rows factors_;
  Rows earlier_;
  Rows bias_;
  std::vector<const float*> pointers_;
};

void expect_contract(const KernelTable& table, const Case& test) {
  ConvolvedToken token(test);
  std::vector<uint32_t> expected;
  std::vector<uint32_t> inputs;
  for (size_t column = 0; column < test.columns; ++column) {
    expected.push_back(std::bit_cast<uint32_t>(token.expected(column)));
    inputs.push_back(std::bit_cast<uint32_t>(token.expected_input(column)));
  }
  const std::vector<float> out = token.compute(table);
  const std::vector<float> kept = token.inputs();
  for (size_t column = 0; column < test.columns; ++column) {
    ASSERT_EQ(std::bit_cast<uint32_t>(out[column]), expected[column])
        << table.name << " column " << column << " of " << test.columns << ", " << test.taps
        << " taps, " << test.missing << " missing";
    ASSERT_EQ(std::bit_cast<uint32_t>(kept[column]), inputs[column]) << table.name;
  }
}

TEST(Convolution, has_the_bits_of_its_contract_on_every_instruction_set) {
  for (const KernelTable* table : tables_that_run_here()) {
    for (const size_t columns : {1U, 15U, 16U, 17U, 32U, 33U, 128U}) {
      for (const size_t taps : {kLeastTaps, size_t{3}, size_t{4}, kMostTaps}) {
        for (const size_t missing : {size_t{0}, size_t{1}, taps - 1}) {
          for (const bool is_gated : {false, true}) {
            expect_contract(*table, {columns, taps, missing, is_gated, !is_gated});
            expect_contract(*table, {columns, taps, missing, is_gated, is_gated});
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
