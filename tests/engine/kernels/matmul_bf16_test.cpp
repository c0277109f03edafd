// The products with bf16 activations, for every row of the kernel table that this machine runs
// (that of AMX emulated where there is none) and every format but F32: bit for bit what their
// definition says, whatever the number of tokens and rows and however the panels are shared out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/bf16_model.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {

namespace {

// More than a chunk of tokens of the vector kernels, and a rest; a last panel of 5 rows.
constexpr size_t kTokens = 150;
constexpr size_t kRows = 85;
constexpr size_t kPanels = 6;
constexpr uint64_t kSeed = 61;
constexpr float kUntouched = -12345.0F;

using Case = std::tuple<ProductRow, Format>;

// A matrix, kTokens rows of activations, and their product by the definition.
struct Problem {
  Problem(Format format, size_t column_count, uint64_t seed)
      : columns(column_count),
        random(seed),
        matrix(format, kRows, columns, random),
        values(random_values(kTokens * columns, random)),
        activations(scalar(), ActivationForm::kBf16, values, kTokens, columns),
        expected(model_product(matrix.packed(), activations, kTokens)) {}

  static const KernelTable& scalar() { return *all_kernel_tables().front(); }

  size_t columns;
  RandomEngine random;
  RandomMatrix matrix;
  std::vector<float> values;
  Activations activations;
  std::vector<float> expected;
};

// The same problem for every row of the table: the definition takes its time.
const Problem& problem_of(Format format, size_t columns) {
  static std::map<std::pair<Format, size_t>, Problem> problems;
  return problems.try_emplace({format, columns}, format, columns, kSeed).first->second;
}

// One block or less; several, no multiple of what a strip of any kernel holds, and odd where the
// format lets them be.
std::vector<size_t> column_counts(Format format) {
  switch (traits(format).block_elements) {
    case 1:
      return {1, 33, 299};
    case 32:
      return {32, 11 * 32};
    default:
      return {256, 3 * 256};
  }
}

// y[t][r] for all tokens and rows, and more, all untouched.
AlignedBuffer untouched_output() {
  const size_t count = kTokens * activation_stride(kRows);
  AlignedBuffer output(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) output.floats()[i] = kUntouched;
  return output;
}

MatmulArguments arguments_for(const Problem& problem, size_t rows, size_t token_count,
                              AlignedBuffer& output) {
  return {.matrix = {.format = problem.matrix.packed().format,
                     .rows = rows,
                     .columns = problem.columns,
                     .panels = problem.matrix.packed().panels},
          .panel_begin = 0,
          .panel_end = (rows + kPanelRows - 1) / kPanelRows,
          .input = problem.activations.row(0),
          .input_stride_bytes = problem.activations.stride_bytes(),
          .token_count = token_count,
          .output = output.floats(),
          .output_stride = activation_stride(kRows)};
}

// The first difference between y[0, tokens)[0, rows) and the product of tokens from `first` on, and
// whether anything outside was written; empty if all is well.
std::string differences(const AlignedBuffer& output, const Problem& problem, size_t first,
                        size_t tokens, size_t rows) {
  for (size_t token = 0; token < kTokens; ++token) {
    for (size_t row = 0; row < activation_stride(kRows); ++row) {
      const float value = output.floats()[token * activation_stride(kRows) + row];
      const bool inside = token < tokens && row < rows;
      const float wanted = inside ? problem.expected[(first + token) * kRows + row] : kUntouched;
      if (same_number(value, wanted)) continue;
      return fmt::format("token {} of {}, row {} of {}: {} instead of {}, {} columns, seed {}",
                         token, tokens, row, rows, value, wanted, problem.columns, kSeed);
    }
  }
  return {};
}

class Bf16Matmul : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const ProductRow& row = std::get<0>(GetParam());
    if (!row.supported) GTEST_SKIP() << "this machine lacks the row '" << row.name << "'";
  }
  Format format() const { return std::get<1>(GetParam()); }
  void run(const MatmulArguments& arguments) const {
    matmul_kernel(*std::get<0>(GetParam()).table, format(), ActivationForm::kBf16)(arguments);
  }

 private:
  TileEmulation emulation_;
};

// With u = 2^-24, a sum of terms that each go through n roundings is off by at most n u / (1 - n u)
// of their magnitude: up to 16 fma, their sum, and an addition for every block and part. Rounding a
// weight to bf16 takes at most 2^-8 of it; the two parts of an F16 take nothing.
TEST_P(Bf16Matmul, is_within_the_rounding_of_its_terms_of_float64) {
  for (const size_t columns : column_counts(format())) {
    const Problem& problem = problem_of(format(), columns);
    AlignedBuffer output = untouched_output();
    run(arguments_for(problem, kRows, kTokens, output));
    const auto blocks = static_cast<double>((columns + 31) / 32);
    const double roundings = 17 + (format() == Format::kF16 ? 2 * blocks : blocks);
    const double unit = std::ldexp(1.0, -24);
    const bool exact_weights = format() == Format::kF16 || format() == Format::kBf16;
    const double relative =
        roundings * unit / (1 - roundings * unit) + (exact_weights ? 0 : std::ldexp(1.001, -8));
    for (size_t row = 0; row < kRows; ++row) {
      const std::vector<float> weights = problem.matrix.dequantized(row);
      // Every seventh token: all places in a tile of tokens are met.
      for (size_t token = row % 7; token < kTokens; token += 7) {
        double sum = 0;
        double magnitude = 0;
        for (size_t k = 0; k < columns; ++k) {
          const float value = problem.values[token * columns + k];
          const auto x = static_cast<double>(bf16_to_float(float_to_bf16(value)));
          sum += static_cast<double>(weights[k]) * x;
          magnitude += std::abs(static_cast<double>(weights[k]) * x);
        }
        const float y = output.floats()[token * activation_stride(kRows) + row];
        ASSERT_NEAR(static_cast<double>(y), sum, relative * magnitude + 1e-30)
            << "seed " << kSeed << ", token " << token << ", row " << row << ", " << columns
            << " columns";
      }
    }
  }
}

TEST_P(Bf16Matmul, gives_the_bits_of_the_definition_for_any_number_of_tokens_and_rows) {
  constexpr size_t kRowCounts[] = {1, 15, 16, 17, 32, 49, 64, kRows};
  for (const size_t columns : column_counts(format())) {
    const Problem& problem = problem_of(format(), columns);
    std::vector<size_t> token_counts = {48, 100, kTokens, kTokens};
    for (size_t count = 1; count <= 33; ++count) token_counts.push_back(count);
    for (size_t i = 0; i < token_counts.size(); ++i) {
      // Few tokens meet every number of rows, many one each.
      for (size_t j = 0; j < (token_counts[i] < 4 ? std::size(kRowCounts) : 1); ++j) {
        const size_t rows = kRowCounts[(i + j) % std::size(kRowCounts)];
        AlignedBuffer output = untouched_output();
        run(arguments_for(problem, rows, token_counts[i], output));
        ASSERT_EQ(differences(output, problem, 0, token_counts[i], rows), "");
      }
    }
  }
}

TEST_P(Bf16Matmul, gives_the_same_bits_however_the_panels_are_shared_out) {
  const Problem& problem = problem_of(format(), column_counts(format()).back());
  for (const size_t token_count : {size_t{1}, size_t{5}, size_t{20}}) {
    for (size_t first = 0; first <= kPanels; ++first) {
      for (size_t second = first; second <= kPanels; second += 3) {
        AlignedBuffer output = untouched_output();
        MatmulArguments arguments = arguments_for(problem, kRows, token_count, output);
        arguments.panel_end = first;
        run(arguments);
        arguments.panel_begin = second;
        arguments.panel_end = kPanels;
        run(arguments);
        arguments.panel_begin = first;
        arguments.panel_end = second;
        run(arguments);
        ASSERT_EQ(differences(output, problem, 0, token_count, kRows), "")
            << "split at " << first << " and " << second;
      }
    }
  }
}

TEST_P(Bf16Matmul, gives_the_same_bits_wherever_a_token_is_in_the_batch) {
  const Problem& problem = problem_of(format(), column_counts(format()).back());
  for (const size_t token_count : {1U, 3U, 8U, 13U, 17U, 40U}) {
    for (size_t first = 0; first + token_count <= kTokens; first += 31) {
      AlignedBuffer output = untouched_output();
      MatmulArguments arguments = arguments_for(problem, kRows, token_count, output);
      arguments.input = problem.activations.row(first);
      run(arguments);
      ASSERT_EQ(differences(output, problem, first, token_count, kRows), "") << "from " << first;
    }
  }
}

TEST_P(Bf16Matmul, scales_tokens_adds_the_bias_and_then_what_was_there) {
  const Problem& problem = problem_of(format(), column_counts(format()).front());
  RandomEngine random(kSeed);
  const std::vector<float> scales = random_values(kTokens, random);
  const std::vector<float> bias = random_values(kRows, random);
  const std::vector<float> before = random_values(kTokens * activation_stride(kRows), random);
  for (const size_t token_count : {size_t{1}, size_t{4}, size_t{31}}) {
    for (unsigned which = 0; which < 8; ++which) {
      AlignedBuffer output = untouched_output();
      std::memcpy(output.data(), before.data(), before.size() * sizeof(float));
      MatmulArguments arguments = arguments_for(problem, kRows, token_count, output);
      if ((which & 1U) != 0) arguments.token_scales = scales.data();
      if ((which & 2U) != 0) arguments.bias = bias.data();
      arguments.accumulate = (which & 4U) != 0;
      run(arguments);
      for (size_t token = 0; token < token_count; ++token) {
        for (size_t row = 0; row < kRows; ++row) {
          const size_t place = token * activation_stride(kRows) + row;
          float expected = problem.expected[token * kRows + row];
          if (arguments.token_scales != nullptr) {
            expected = model_multiply(expected, scales[token]);
          }
          if (arguments.bias != nullptr) expected = model_add(expected, bias[row]);
          if (arguments.accumulate) expected = model_add(before[place], expected);
          ASSERT_TRUE(same_number(output.floats()[place], expected))
              << output.floats()[place] << " instead of " << expected << ": token " << token
              << ", row " << row << ", case " << which;
        }
      }
    }
  }
}

// As many tokens as a prompt's pass has, and more than a chunk of the matrix unit's kernels.
TEST_P(Bf16Matmul, gives_the_bits_of_the_definition_for_the_tokens_of_a_prompt) {
  constexpr size_t kMany = 512 + 37;
  constexpr size_t kFewRows = 35;
  const size_t columns = traits(format()).block_elements == 1 ? 45 : column_counts(format())[0];
  RandomEngine random(kSeed + 1);
  const RandomMatrix matrix(format(), kFewRows, columns, random);
  const Activations activations(Problem::scalar(), ActivationForm::kBf16,
                                random_values(kMany * columns, random), kMany, columns);
  AlignedBuffer output(kMany * kFewRows * sizeof(float));
  for (const size_t token_count : {size_t{512}, kMany}) {
    const std::vector<float> expected = model_product(matrix.packed(), activations, token_count);
    run({.matrix = matrix.packed(),
         .panel_end = matrix.packed().panel_count(),
         .input = activations.row(0),
         .input_stride_bytes = activations.stride_bytes(),
         .token_count = token_count,
         .output = output.floats(),
         .output_stride = kFewRows});
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(same_number(output.floats()[i], expected[i]))
          << output.floats()[i] << " instead of " << expected[i] << ": token " << i / kFewRows
          << ", row " << i % kFewRows << ", seed " << kSeed + 1;
    }
  }
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

INSTANTIATE_TEST_SUITE_P(Rows, Bf16Matmul,
                         testing::Combine(testing::ValuesIn(product_rows()),
                                          testing::ValuesIn(formats())),
                         case_name);

}  // namespace

}  // namespace lockstep
