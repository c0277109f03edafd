// The matrix products, for every row of the kernel table that this machine runs and every
// format: against float64 over dequantized weights with a derived bound, and bit for bit against
// the scalar row, whatever the number of tokens and rows and however the panels are shared out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/random_weights.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {

namespace {

// More than one chunk of the prompt's kernel, and a rest.
constexpr size_t kTokens = 150;
constexpr size_t kRows = 172;
constexpr uint64_t kSeed = 31;

using Case = std::tuple<const KernelTable*, Format>;

// A matrix and kTokens rows of activations, before and after they were quantized.
struct Problem {
  Problem(const KernelTable& quantizer, Format format, size_t column_count, uint64_t seed)
      : columns(column_count),
        random(seed),
        matrix(format, kRows, columns, random),
        values(random_values(kTokens * columns, random)),
        activations(quantizer, format, values, kTokens, columns) {}

  size_t columns;
  RandomEngine random;
  RandomMatrix matrix;
  std::vector<float> values;
  Activations activations;
};

// The columns tried: one block; several, no multiple of what a strip of the prompt's kernel holds.
std::vector<size_t> column_counts(Format format) {
  switch (traits(format).block_elements) {
    case 1:
      return {1, 300};
    case 32:
    case 64:
      return {traits(format).block_elements, 34 * 32};
    default:
      return {256, 5 * 256};
  }
}

constexpr float kUntouched = -12345.0F;

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
          .output_stride = activation_stride(kRows),
          .bias = nullptr,
          .accumulate = false};
}

AlignedBuffer untouched_output() {
  const size_t count = kTokens * activation_stride(kRows);
  AlignedBuffer output(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) output.floats()[i] = kUntouched;
  return output;
}

void run(const KernelTable& table, const MatmulArguments& arguments) {
  table.matmul[static_cast<size_t>(arguments.matrix.format)](arguments);
}

const KernelTable& scalar_table() {
  return *all_kernel_tables().front();
}

float at(const AlignedBuffer& output, size_t token, size_t row) {
  return output.floats()[token * activation_stride(kRows) + row];
}

// The first difference in bits between y[0, tokens)[0, rows) and `expected`, and whether anything
// outside was written; empty if all is well.
std::string differences(const AlignedBuffer& actual, const AlignedBuffer& expected, size_t tokens,
                        size_t rows) {
  for (size_t token = 0; token < kTokens; ++token) {
    for (size_t row = 0; row < activation_stride(kRows); ++row) {
      const float value = at(actual, token, row);
      const float wanted = token < tokens && row < rows ? at(expected, token, row) : kUntouched;
      if (std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(wanted)) continue;
      return fmt::format("token {} of {}, row {} of {}: {} instead of {}", token, tokens, row, rows,
                         value, wanted);
    }
  }
  return {};
}

class Matmul : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!runs_here(table())) {
      GTEST_SKIP() << "this machine lacks the row '" << table().name << "'";
    }
  }
  const KernelTable& table() const { return *std::get<0>(GetParam()); }
  Format format() const { return std::get<1>(GetParam()); }
};

// Tests of the formats whose activations are quantized.
class QuantizedMatmul : public Matmul {};

// The weights of a row as they would be with all quants zero: -minimum in the formats that have
// one.
std::vector<float> values_of_zero_quants(const Problem& problem, size_t row) {
  const Format format = problem.matrix.packed().format;
  size_t quants_begin = 0;
  size_t quants_end = traits(format).block_bytes;
  switch (format) {
    case Format::kQ2_K:
      quants_begin = 16;
      quants_end = 80;
      break;
    case Format::kQ4_1:
    case Format::kQ5_1:
      quants_begin = 4;
      break;
    case Format::kQ4_K:
    case Format::kQ5_K:
      quants_begin = 16;
      break;
    default:
      return std::vector<float>(problem.columns);
  }
  std::vector<std::byte> bytes = problem.matrix.file_row(row);
  const size_t block_bytes = traits(format).block_bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t place = i % block_bytes;
    if (place >= quants_begin && place < quants_end) bytes[i] = std::byte{0};
  }
  std::vector<float> values(problem.columns);
  traits(format).dequantize(bytes.data(), problem.columns, values.data());
  return values;
}

// The activations as the kernel reads them, exactly.
std::vector<double> read_activations(const Problem& problem, size_t token) {
  const std::byte* row = problem.activations.row(token);
  std::vector<double> values(problem.columns);
  if (activation_form(problem.matrix.packed().format) == ActivationForm::kF32) {
    for (size_t k = 0; k < problem.columns; ++k) {
      values[k] = static_cast<double>(problem.values[token * problem.columns + k]);
    }
    return values;
  }
  for (size_t k = 0; k < problem.columns; ++k) {
    float scale = 0;
    std::memcpy(&scale, row + q8_row(problem.columns).scales + k / 32 * sizeof scale, sizeof scale);
    values[k] = static_cast<double>(scale) * static_cast<int8_t>(row[k]);
  }
  return values;
}

// With u = 2^-24, a term that goes through n roundings is off by at most n u / (1 - n u) of its
// magnitude. A term w x of a product of floats goes through at most `columns` roundings, one per
// fma. A term of a quantized product goes through the fma of its block and of all later ones (up to
// two a block), its factors' products (d * sc, * scale; 2), and the reference's own weight (d * sc,
// * q, - m; 3), its sum being exact before that; the minimum's term likewise. The magnitude is
// |d q x| + |m x|, at most (|w| + 2 |m|) |x|.
TEST_P(Matmul, is_within_the_rounding_of_its_terms_of_float64) {
  for (const size_t columns : column_counts(format())) {
    const Problem problem(table(), format(), columns, kSeed);
    AlignedBuffer output = untouched_output();
    run(table(), arguments_for(problem, kRows, kTokens, output));
    const bool floats = activation_form(format()) == ActivationForm::kF32;
    const auto roundings = static_cast<double>(floats ? columns : 2 * columns / 32 + 5);
    const double unit = std::ldexp(1.0, -24);
    const double relative = roundings * unit / (1 - roundings * unit);
    for (size_t row = 0; row < kRows; ++row) {
      const std::vector<float> weights = problem.matrix.dequantized(row);
      const std::vector<float> minimums = values_of_zero_quants(problem, row);
      // Every seventh token: all places in a tile of tokens are met.
      for (size_t token = row % 7; token < kTokens; token += 7) {
        const std::vector<double> x = read_activations(problem, token);
        double sum = 0;
        double magnitude = 0;
        for (size_t k = 0; k < columns; ++k) {
          const auto weight = static_cast<double>(weights[k]);
          sum += weight * x[k];
          magnitude +=
              (std::abs(weight) + 2 * std::abs(static_cast<double>(minimums[k]))) * std::abs(x[k]);
        }
        ASSERT_NEAR(static_cast<double>(at(output, token, row)), sum, relative * magnitude + 1e-30)
            << "seed " << kSeed << ", token " << token << ", row " << row << ", " << columns
            << " columns";
      }
    }
  }
}

// Against the activations before they were quantized: each is off by at most half a step (and the
// rounding of the quotient, see quantize_test.cpp), times its weight.
TEST_P(QuantizedMatmul, of_the_unquantized_activations_is_within_half_a_step_per_weight) {
  const size_t columns = column_counts(format()).back();
  const Problem problem(table(), format(), columns, kSeed + 1);
  AlignedBuffer output = untouched_output();
  run(table(), arguments_for(problem, kRows, kTokens, output));
  for (size_t row = 0; row < kRows; ++row) {
    const std::vector<float> weights = problem.matrix.dequantized(row);
    const size_t token = row % kTokens;
    const std::byte* activations = problem.activations.row(token);
    double sum = 0;
    double bound = 0;
    for (size_t k = 0; k < columns; ++k) {
      float scale = 0;
      std::memcpy(&scale, activations + q8_row(columns).scales + k / 32 * sizeof scale,
                  sizeof scale);
      const auto weight = static_cast<double>(weights[k]);
      sum += weight * static_cast<double>(problem.values[token * columns + k]);
      // A thousandth of a step more covers all rounding in f32 (test above).
      bound += std::abs(weight) * 0.501 * static_cast<double>(scale);
    }
    ASSERT_NEAR(static_cast<double>(at(output, token, row)), sum, bound)
        << "seed " << kSeed + 1 << ", row " << row;
  }
}

TEST_P(Matmul, gives_the_bits_of_the_scalar_row_for_any_number_of_tokens_rows_and_streams) {
  for (const size_t columns : column_counts(format())) {
    const Problem problem(table(), format(), columns, kSeed + 2);
    AlignedBuffer expected = untouched_output();
    run(scalar_table(), arguments_for(problem, kRows, kTokens, expected));
    std::vector<size_t> token_counts;
    for (size_t count = 1; count <= 33; ++count) token_counts.push_back(count);
    token_counts.push_back(100);
    token_counts.push_back(kTokens);
    for (const size_t token_count : token_counts) {
      for (const size_t rows :
           {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{32}, size_t{49}, kRows}) {
        for (const size_t streams : {size_t{1}, size_t{2}}) {
          AlignedBuffer output = untouched_output();
          MatmulArguments arguments = arguments_for(problem, rows, token_count, output);
          arguments.panel_streams = streams;
          run(table(), arguments);
          ASSERT_EQ(differences(output, expected, token_count, rows), "")
              << columns << " columns, " << streams << " streams";
        }
      }
    }
  }
}

TEST_P(Matmul, gives_the_same_bits_however_the_panels_are_shared_out) {
  const Problem problem(table(), format(), column_counts(format()).back(), kSeed + 3);
  for (const size_t token_count : {size_t{1}, size_t{2}, size_t{5}, size_t{8}, size_t{20}}) {
    AlignedBuffer expected = untouched_output();
    run(scalar_table(), arguments_for(problem, kRows, token_count, expected));
    for (size_t first = 0; first <= 11; ++first) {
      for (size_t second = first; second <= 11; second += 3) {
        AlignedBuffer output = untouched_output();
        MatmulArguments arguments = arguments_for(problem, kRows, token_count, output);
        arguments.panel_streams = 1 + (first + second) % 2;
        arguments.panel_end = first;
        run(table(), arguments);
        arguments.panel_begin = second;
        arguments.panel_end = 11;
        run(table(), arguments);
        arguments.panel_begin = first;
        arguments.panel_end = second;
        run(table(), arguments);
        ASSERT_EQ(differences(output, expected, token_count, kRows), "")
            << "split at " << first << " and " << second;
      }
    }
  }
}

TEST_P(QuantizedMatmul, takes_some_columns_of_wider_rows) {
  constexpr size_t kBefore = 64;
  constexpr size_t kBehind = 32;
  const Problem problem(table(), format(), column_counts(format()).back(), kSeed + 6);
  const size_t wide = kBefore + problem.columns + kBehind;
  RandomEngine random(kSeed);
  std::vector<float> values = random_values(kTokens * wide, random);
  for (size_t token = 0; token < kTokens; ++token) {
    std::memcpy(values.data() + token * wide + kBefore,
                problem.values.data() + token * problem.columns, problem.columns * sizeof(float));
  }
  const Activations rows(table(), format(), values, kTokens, wide);
  AlignedBuffer expected = untouched_output();
  run(scalar_table(), arguments_for(problem, kRows, kTokens, expected));
  for (const size_t token_count : {size_t{1}, size_t{3}, size_t{8}, kTokens}) {
    AlignedBuffer output = untouched_output();
    MatmulArguments arguments = arguments_for(problem, kRows, token_count, output);
    arguments.input = rows.row(0) + kBefore;
    arguments.input_stride_bytes = rows.stride_bytes();
    arguments.row_columns = wide;
    arguments.row_first = kBefore;
    run(table(), arguments);
    ASSERT_EQ(differences(output, expected, token_count, kRows), "");
  }
}

TEST_P(Matmul, gives_the_same_bits_wherever_a_token_is_in_the_batch) {
  const Problem problem(table(), format(), column_counts(format()).back(), kSeed + 4);
  AlignedBuffer expected = untouched_output();
  run(scalar_table(), arguments_for(problem, kRows, kTokens, expected));
  for (const size_t token_count : {1U, 3U, 8U, 13U, 40U}) {
    for (size_t first = 0; first + token_count <= kTokens; first += 11) {
      AlignedBuffer output = untouched_output();
      MatmulArguments arguments = arguments_for(problem, kRows, token_count, output);
      arguments.input = problem.activations.row(first);
      run(table(), arguments);
      for (size_t token = 0; token < token_count; ++token) {
        ASSERT_EQ(0, std::memcmp(output.floats() + token * arguments.output_stride,
                                 expected.floats() + (first + token) * arguments.output_stride,
                                 kRows * sizeof(float)))
            << "token " << first + token << " as number " << token << " of " << token_count;
      }
    }
  }
}

TEST_P(Matmul, adds_the_bias_and_then_what_was_there) {
  const Problem problem(table(), format(), column_counts(format()).back(), kSeed + 5);
  RandomEngine random(kSeed);
  const std::vector<float> bias = random_values(kRows, random);
  const std::vector<float> before = random_values(kTokens * activation_stride(kRows), random);
  AlignedBuffer product = untouched_output();
  run(scalar_table(), arguments_for(problem, kRows, kTokens, product));
  for (const size_t token_count : {size_t{1}, size_t{4}, kTokens}) {
    for (const bool with_bias : {false, true}) {
      for (const bool accumulate : {false, true}) {
        AlignedBuffer output = untouched_output();
        std::memcpy(output.data(), before.data(), before.size() * sizeof(float));
        MatmulArguments arguments = arguments_for(problem, kRows, token_count, output);
        if (with_bias) arguments.bias = bias.data();
        arguments.accumulate = accumulate;
        run(table(), arguments);
        for (size_t token = 0; token < token_count; ++token) {
          for (size_t row = 0; row < kRows; ++row) {
            float expected = at(product, token, row);
            if (with_bias) expected += bias[row];
            if (accumulate) expected += before[token * activation_stride(kRows) + row];
            ASSERT_EQ(at(output, token, row), expected)
                << "token " << token << ", row " << row << ", bias " << with_bias << ", accumulate "
                << accumulate;
          }
        }
      }
    }
  }
}

// With activations on the grid of int8 and all scales powers of two, every sum is an integer times
// a power of two, below 2^24: nothing is rounded, and the result must be the exact one.
TEST_P(QuantizedMatmul, is_exact_where_nothing_needs_rounding) {
  const size_t columns = traits(format()).block_elements;
  RandomEngine random(kSeed + 6);
  std::vector<std::byte> rows = random_rows(format(), kRows, columns, random);
  set_halves(format(), 0.125F, rows);
  const RandomMatrix matrix(format(), kRows, columns, std::move(rows));
  constexpr size_t kFew = 11;
  std::vector<float> values(kFew * columns);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto integer = static_cast<int>(random() % 255) - 127;
    values[i] = 0.25F * static_cast<float>(i % 32 == 7 ? 127 : integer);
  }
  const Activations activations(table(), format(), values, kFew, columns);
  AlignedBuffer output = untouched_output();
  const MatmulArguments arguments = {.matrix = matrix.packed(),
                                     .panel_end = matrix.packed().panel_count(),
                                     .input = activations.row(0),
                                     .input_stride_bytes = activations.stride_bytes(),
                                     .token_count = kFew,
                                     .output = output.floats(),
                                     .output_stride = activation_stride(kRows)};
  run(table(), arguments);
  for (size_t row = 0; row < kRows; ++row) {
    const std::vector<float> weights = matrix.dequantized(row);
    for (size_t token = 0; token < kFew; ++token) {
      double sum = 0;
      for (size_t k = 0; k < columns; ++k) {
        sum += static_cast<double>(weights[k]) * static_cast<double>(values[token * columns + k]);
      }
      ASSERT_EQ(static_cast<double>(at(output, token, row)), sum)
          << "seed " << kSeed + 6 << ", token " << token << ", row " << row;
    }
  }
}

// The largest sums that the integers of a block can reach: weights all at one end of their range,
// activations all at theirs. An overflow or a saturation would be off by far more than rounding.
TEST_P(QuantizedMatmul, no_weights_and_activations_are_too_large_for_the_integer_sums) {
  const size_t columns = traits(format()).block_elements;
  for (const unsigned fill : {0xFFU, 0x00U, 0x7FU, 0x80U, 0x81U}) {
    std::vector<std::byte> rows(kPanelRows * row_bytes(format(), columns),
                                static_cast<std::byte>(fill));
    set_halves(format(), 0.125F, rows);
    const RandomMatrix matrix(format(), kPanelRows, columns, std::move(rows));
    const std::vector<float> weights = matrix.dequantized(0);
    // All at one end, all at the other, and a token of each sign in turn.
    std::vector<float> values(3 * columns);
    for (size_t k = 0; k < columns; ++k) {
      values[k] = 127.0F;
      values[columns + k] = -127.0F;
      values[2 * columns + k] = k % 2 == 0 ? 127.0F : -127.0F;
    }
    const Activations activations(table(), format(), values, 3, columns);
    AlignedBuffer output = untouched_output();
    run(table(), {.matrix = matrix.packed(),
                  .panel_end = 1,
                  .input = activations.row(0),
                  .input_stride_bytes = activations.stride_bytes(),
                  .token_count = 3,
                  .output = output.floats(),
                  .output_stride = activation_stride(kRows)});
    for (size_t token = 0; token < 3; ++token) {
      double sum = 0;
      for (size_t k = 0; k < columns; ++k) {
        sum += static_cast<double>(weights[k]) * static_cast<double>(values[token * columns + k]);
      }
      // 21 roundings at most (see above) of terms of at most 2^17, 256 of them.
      const double bound = 21 * std::ldexp(256.0, 17 - 24);
      for (size_t row = 0; row < kPanelRows; ++row) {
        ASSERT_NEAR(static_cast<double>(at(output, token, row)), sum, bound)
            << "all bytes " << fill << ", token " << token << ", row " << row;
      }
    }
  }
}

std::vector<Format> formats(bool quantized_only) {
  std::vector<Format> formats;
  for (const FormatTraits& format : all_formats()) {
    const bool quantized = activation_form(format.format) == ActivationForm::kQ8;
    if (quantized || !quantized_only) formats.push_back(format.format);
  }
  return formats;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param)->name, traits(std::get<1>(info.param)).name);
}

INSTANTIATE_TEST_SUITE_P(Tables, Matmul,
                         testing::Combine(testing::ValuesIn(all_kernel_tables().begin(),
                                                            all_kernel_tables().end()),
                                          testing::ValuesIn(formats(false))),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Tables, QuantizedMatmul,
                         testing::Combine(testing::ValuesIn(all_kernel_tables().begin(),
                                                            all_kernel_tables().end()),
                                          testing::ValuesIn(formats(true))),
                         case_name);

}  // namespace

}  // namespace lockstep
