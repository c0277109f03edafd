// The gate's and the other product of a feed-forward by one kernel, for every row of products that
// has it and every format: bit for bit what the definitions of its operations give one by one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/range.h"
#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/bf16_model.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

constexpr uint64_t kSeed = 71;
constexpr uint16_t kUntouched = 0xABCD;

using Case = std::tuple<ProductRow, Format>;

const KernelTable& scalar() {
  return *all_kernel_tables().front();
}

struct Size {
  size_t rows;
  size_t columns;  // of formats without blocks; others have it rounded up
  size_t tokens;
};

// Two matrices and tokens, and what to do with their products.
class Problem {
 public:
  Problem(Format format, const Size& size)
      : random_(kSeed),
        rows_(size.rows),
        columns_(round_up<size_t>(size.columns, traits(format).block_elements)),
        tokens_(size.tokens),
        gate_(format, rows_, columns_, random_),
        up_(format, rows_, columns_, random_),
        activations_(scalar(), ActivationForm::kBf16, random_values(tokens_ * columns_, random_),
                     tokens_, columns_),
        scales_(random_values(tokens_, random_)),
        gate_bias_(random_values(rows_, random_)),
        up_bias_(random_values(rows_, random_)) {}

  size_t rows() const { return rows_; }
  size_t tokens() const { return tokens_; }
  size_t panels() const { return gate_.packed().panel_count(); }
  size_t stride() const { return rows_ + 32; }
  std::vector<float>& scales() { return scales_; }

  MatmulArguments gate(bool scaled, bool biased) const {
    return arguments(gate_, scaled, biased ? gate_bias_.data() : nullptr);
  }
  MatmulArguments up(bool scaled, bool biased) const {
    return arguments(up_, scaled, biased ? up_bias_.data() : nullptr);
  }

  // [token][row], `stride` from one token to the next, the rest untouched.
  std::vector<uint16_t> expected(bool scaled, bool biased) const {
    const std::vector<float> gate_values = product(gate(scaled, biased));
    const std::vector<float> up_values = product(up(scaled, biased));
    std::vector<float> values(gate_values.size());
    gate_kernel(scalar(), ActivationFunction::kSilu)(gate_values.data(), up_values.data(),
                                                     values.size(), nullptr, values.data());
    std::vector<uint16_t> expected(tokens_ * stride(), kUntouched);
    for (size_t token = 0; token < tokens_; ++token) {
      scalar().to_bf16(values.data() + token * rows_, rows_,
                       reinterpret_cast<std::byte*>(expected.data() + token * stride()));
    }
    return expected;
  }

 private:
  MatmulArguments arguments(const RandomMatrix& matrix, bool scaled, const float* bias) const {
    return {.matrix = matrix.packed(),
            .panel_end = matrix.packed().panel_count(),
            .input = activations_.row(0),
            .input_stride_bytes = activations_.stride_bytes(),
            .token_count = tokens_,
            .token_scales = scaled ? scales_.data() : nullptr,
            .bias = bias};
  }
  std::vector<float> product(MatmulArguments arguments) const {
    std::vector<float> values(tokens_ * rows_);
    arguments.output = values.data();
    arguments.output_stride = rows_;
    matmul_kernel(scalar(), arguments.matrix.format, ActivationForm::kBf16)(arguments);
    return values;
  }

  RandomEngine random_;
  size_t rows_;
  size_t columns_;
  size_t tokens_;
  RandomMatrix gate_;
  RandomMatrix up_;
  Activations activations_;
  std::vector<float> scales_;
  std::vector<float> gate_bias_;
  std::vector<float> up_bias_;
};

class GatedBf16 : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const ProductRow& row = std::get<0>(GetParam());
    if (!row.supported) GTEST_SKIP() << "this machine lacks the row '" << row.name << "'";
  }
  Format format() const { return std::get<1>(GetParam()); }

  // Panels [begin, end) of the first `tokens` tokens, into `output`.
  void run(const Problem& problem, bool scaled, bool biased, size_t tokens, Range panels,
           std::vector<uint16_t>& output) const {
    GatedArguments arguments = {.gate = problem.gate(scaled, biased),
                                .up = problem.up(scaled, biased),
                                .output = reinterpret_cast<std::byte*>(output.data()),
                                .output_stride_bytes = problem.stride() * sizeof(uint16_t)};
    for (MatmulArguments* product : {&arguments.gate, &arguments.up}) {
      product->token_count = tokens;
      product->panel_begin = panels.begin;
      product->panel_end = panels.end;
    }
    gated_kernel(*std::get<0>(GetParam()).table, format())(arguments);
  }
  std::vector<uint16_t> run(const Problem& problem, bool scaled, bool biased, size_t tokens) const {
    std::vector<uint16_t> output(problem.tokens() * problem.stride(), kUntouched);
    run(problem, scaled, biased, tokens, {0, problem.panels()}, output);
    return output;
  }
  // The first difference, or nothing.
  static std::string difference(const Problem& problem, const std::vector<uint16_t>& actual,
                                const std::vector<uint16_t>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      if (actual[i] == expected[i]) continue;
      return fmt::format("token {}, row {}: {:#06x} instead of {:#06x}, seed {}",
                         i / problem.stride(), i % problem.stride(), actual[i], expected[i], kSeed);
    }
    return {};
  }

 private:
  TileEmulation emulation_;
};

TEST_P(GatedBf16, gives_the_bits_of_its_operations_one_by_one) {
  const Problem problem(format(), {.rows = 37, .columns = 45, .tokens = 70});
  for (unsigned which = 0; which < 4; ++which) {
    const bool scaled = (which & 1U) != 0;
    const bool biased = (which & 2U) != 0;
    ASSERT_EQ(difference(problem, run(problem, scaled, biased, problem.tokens()),
                         problem.expected(scaled, biased)),
              "")
        << "case " << which;
  }
}

TEST_P(GatedBf16, gives_the_same_bits_for_any_number_of_tokens) {
  const Problem problem(format(), {.rows = 21, .columns = 33, .tokens = 65});
  const std::vector<uint16_t> all = problem.expected(true, true);
  for (const size_t tokens : {1U, 2U, 15U, 16U, 17U, 31U, 32U, 33U, 47U, 48U, 49U, 64U, 65U}) {
    std::vector<uint16_t> expected = all;
    std::fill(expected.begin() + static_cast<ptrdiff_t>(tokens * problem.stride()), expected.end(),
              kUntouched);
    ASSERT_EQ(difference(problem, run(problem, true, true, tokens), expected), "")
        << tokens << " tokens";
  }
}

TEST_P(GatedBf16, gives_the_same_bits_however_the_panels_are_shared_out) {
  const Problem problem(format(), {.rows = 53, .columns = 33, .tokens = 20});
  const std::vector<uint16_t> expected = problem.expected(true, false);
  const size_t panels = problem.panels();
  for (size_t first = 0; first <= panels; ++first) {
    for (size_t second = first; second <= panels; ++second) {
      std::vector<uint16_t> output(expected.size(), kUntouched);
      run(problem, true, false, 20, {second, panels}, output);
      run(problem, true, false, 20, {0, first}, output);
      run(problem, true, false, 20, {first, second}, output);
      ASSERT_EQ(difference(problem, output, expected), "")
          << "split at " << first << " and " << second;
    }
  }
}

// More panels than a group has, more tokens than a chunk; and more columns than a strip.
TEST_P(GatedBf16, gives_the_same_bits_for_a_prompt) {
  for (const Size& size : {Size{.rows = 16 * 17 + 5, .columns = 20, .tokens = 256 + 33},
                           Size{.rows = 33, .columns = 1100, .tokens = 40}}) {
    const Problem problem(format(), size);
    ASSERT_EQ(
        difference(problem, run(problem, true, true, size.tokens), problem.expected(true, true)),
        "");
  }
}

// Products take numbers below the normal ones for zero; the gate's activation keeps them.
TEST_P(GatedBf16, keeps_what_the_gate_leaves_below_the_normal_numbers) {
  Problem problem(format(), {.rows = 16, .columns = 33, .tokens = 40});
  float next = 1e-18F;
  for (float& scale : problem.scales()) {
    scale = next;
    next *= 0.75F;
  }
  const std::vector<uint16_t> expected = problem.expected(true, false);
  size_t count = 0;
  for (const uint16_t bits : expected) {
    count += (bits & 0x7F80U) == 0 && (bits & 0x7FU) != 0;
  }
  ASSERT_GT(count, 10U);
  ASSERT_EQ(difference(problem, run(problem, true, false, problem.tokens()), expected), "");
}

std::vector<ProductRow> gated_rows() {
  std::vector<ProductRow> rows = product_rows();
  std::erase_if(rows, [](const ProductRow& row) { return !row.table->has_tiles; });
  return rows;
}

std::vector<Format> formats() {
  std::vector<Format> formats;
  for (const FormatTraits& format : all_formats()) {
    if (format.format != Format::kF32) formats.push_back(format.format);
  }
  return formats;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param).name, traits(std::get<1>(info.param)).name);
}

INSTANTIATE_TEST_SUITE_P(Rows, GatedBf16,
                         testing::Combine(testing::ValuesIn(gated_rows()),
                                          testing::ValuesIn(formats())),
                         case_name);

}  // namespace
}  // namespace lockstep
