// The steps after a product on a GPU give what plain code makes of the product alone, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "tests/engine/kernels/cuda/kernel_rounding.h"
#include "tests/engine/kernels/cuda/product_inputs.h"

namespace lockstep {
namespace {

constexpr size_t kSeed = 60;
constexpr size_t kColumns = 256;
constexpr uint16_t kUntouched = 0xABCD;

// The parameters are how many tokens there are, as kernels of few finish them by another way, and
// whether there is space for partial sums, by which products of more tokens are split where rows
// are few.
class GpuProductFinish : public testing::TestWithParam<std::tuple<uint32_t, bool>> {
 protected:
  GpuProduct product_of(const Inputs& inputs, size_t limit) {
    GpuProduct product;
    product.input = inputs.row(0);
    product.input_stride_bytes = inputs.stride_bytes();
    product.token_count = inputs.token_count();
    product.token_limit = limit;
    product.partials = partials_.empty() ? nullptr : partials_.data();
    product.partial_floats = partials_.size();
    return product;
  }

 private:
  std::vector<float> partials_ = std::vector<float>(std::get<1>(GetParam()) ? size_t{1} << 20U : 0);
};

// As gpu_product.h says.
float factor_of(const GpuNormFactor& norm, size_t token) {
  float lanes[32] = {};
  for (size_t chunk = 0; chunk < norm.columns / 32; ++chunk) {
    lanes[chunk % 32] += norm.chunk_sums[token * norm.stride + chunk];
  }
  for (size_t distance = 16; distance > 0; distance /= 2) {
    for (size_t lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
  }
  return 1 / std::sqrt(lanes[0] / static_cast<float>(norm.columns) + norm.epsilon);
}

TEST_P(GpuProductFinish, parts_have_factor_scale_bias_and_what_was_there) {
  RandomEngine random(kSeed);
  const uint32_t tokens = std::get<0>(GetParam());
  // Two kernels: of the first two parts, and of the third.
  const Weights weights[] = {{Format::kQ4_0, 70, kColumns, random},
                             {Format::kQ4_0, 9, kColumns, random},
                             {Format::kQ6_K, 32, kColumns, random}};
  const Inputs inputs(Format::kQ4_0, tokens, kColumns, random);
  std::vector<float> chunks = random_values(tokens * 40, random);
  for (float& chunk : chunks) chunk = std::abs(chunk);
  const std::vector<float> bias = random_values(70, random);
  const std::vector<float> before = random_values(tokens * 80, random);
  const float scales[] = {1, -1.7F, 0.6F};
  for (const bool with_norm : {false, true}) {
    GpuProduct product = product_of(inputs, tokens);
    if (with_norm) product.norm = {chunks.data(), 40, 37 * 32, 1e-5F};
    product.part_count = 3;
    std::vector<float> outputs[3];
    for (size_t part = 0; part < 3; ++part) {
      outputs[part] = before;
      product.parts[part] = {weights[part].matrix(),
                             part == 1 ? nullptr : bias.data(),
                             outputs[part].data(),
                             80,
                             part == 2,
                             scales[part]};
    }
    gpu_product(nullptr, product);
    for (size_t part = 0; part < 3; ++part) {
      const size_t rows = weights[part].matrix().rows;
      const std::vector<float> plain =
          multiply_all(weights[part].matrix(), inputs, 0, tokens, tokens);
      for (size_t at = 0; at < before.size(); ++at) {
        const size_t token = at / 80;
        const size_t row = at % 80;
        float expected = before[at];
        if (row < rows) {
          float y = plain[token * rows + row];
          if (with_norm) y *= factor_of(product.norm, token);
          y *= scales[part];
          if (part != 1) y += bias[row];
          expected = part == 2 ? y + before[at] : y;
        }
        ASSERT_EQ(outputs[part][at], expected)
            << "part " << part << ", token " << token << ", row " << row << ", norm " << with_norm;
      }
    }
  }
}

// A chunk's squares, as KernelTable::weigh adds them up.
float squares_of(const float* values, size_t count) {
  float lanes[16];
  for (size_t lane = 0; lane < 16; ++lane) {
    const float first = lane < count ? values[lane] : 0;
    const float second = lane + 16 < count ? values[lane + 16] : 0;
    lanes[lane] = std::fma(second, second, first * first);
  }
  for (size_t distance = 8; distance > 0; distance /= 2) {
    for (size_t lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
  }
  return lanes[0];
}

TEST_P(GpuProductFinish, norms_weigh_the_residual_and_add_up_its_squares) {
  RandomEngine random(kSeed + 1);
  const uint32_t tokens = std::get<0>(GetParam());
  constexpr size_t kRows = 149;  // a chunk of 21 at the end, in two panels
  constexpr size_t kStride = 168;
  constexpr size_t kChunks = 5;
  const Weights weights(Format::kQ8_0, kRows, kColumns, random);
  const Inputs inputs(Format::kQ8_0, tokens, kColumns, random);
  const std::vector<float> weight = random_values(kRows, random);
  std::vector<float> residual = random_values(tokens * kRows, random);
  std::vector<float> expected = multiply_all(weights.matrix(), inputs, 0, tokens, tokens);
  for (size_t at = 0; at < expected.size(); ++at) expected[at] += residual[at];
  // The second norm is of two tokens alone.
  std::vector<uint32_t> rows(tokens, kGpuNoRow);
  rows[tokens - 1] = 0;
  rows[1] = 1;
  std::vector<uint16_t> bf16[2];
  std::vector<float> f32(tokens * kStride, -3.0F);
  std::vector<float> sums[2];
  GpuProduct product = product_of(inputs, tokens <= 8 ? 8 : 16);
  product.part_count = 1;
  product.parts[0] = {weights.matrix(), nullptr, residual.data(), kRows, true};
  product.finish = GpuFinish::kNorms;
  product.norm_count = 2;
  for (size_t norm = 0; norm < 2; ++norm) {
    bf16[norm].assign(tokens * kStride, kUntouched);
    sums[norm].assign(tokens * kChunks, -3.0F);
    product.norms[norm] = {weight.data(),
                           {bf16[norm].data(), kStride, nullptr, 0},
                           sums[norm].data(),
                           kChunks,
                           norm == 0 ? nullptr : rows.data()};
  }
  product.norms[1].rows.f32 = f32.data();
  product.norms[1].rows.f32_stride = kStride;
  gpu_product(nullptr, product);
  EXPECT_EQ(residual, expected);
  std::vector<uint16_t> expected_bf16[2];
  std::vector<float> expected_f32(tokens * kStride, -3.0F);
  std::vector<float> expected_sums[2];
  for (size_t norm = 0; norm < 2; ++norm) {
    expected_bf16[norm].assign(tokens * kStride, kUntouched);
    expected_sums[norm].assign(tokens * kChunks, -3.0F);
    for (size_t token = 0; token < tokens; ++token) {
      const size_t to = norm == 0 ? token : rows[token];
      if (to == kGpuNoRow) continue;
      const float* values = expected.data() + token * kRows;
      for (size_t row = 0; row < kChunks * 32; ++row) {
        const float weighed = row < kRows ? values[row] * weight[row] : 0;
        expected_bf16[norm][to * kStride + row] = float_to_bf16(weighed);
        if (norm == 1 && row < kRows) expected_f32[to * kStride + row] = weighed;
      }
      for (size_t chunk = 0; chunk < kChunks; ++chunk) {
        expected_sums[norm][to * kChunks + chunk] =
            squares_of(values + chunk * 32, std::min<size_t>(32, kRows - chunk * 32));
      }
    }
    EXPECT_EQ(bf16[norm], expected_bf16[norm]) << "norm " << norm;
    EXPECT_EQ(sums[norm], expected_sums[norm]) << "norm " << norm;
  }
  EXPECT_EQ(f32, expected_f32);
}

TEST_P(GpuProductFinish, a_gate_multiplies_the_second_part) {
  RandomEngine random(kSeed + 2);
  const uint32_t tokens = std::get<0>(GetParam());
  constexpr size_t kStride = 72;
  for (const size_t rows : {size_t{40}, size_t{48}, size_t{64}}) {
    const Weights first(Format::kQ4_K, rows, kColumns, random);
    const Weights second(Format::kQ4_K, rows, kColumns, random);
    const Inputs inputs(Format::kQ4_K, tokens, kColumns, random);
    std::vector<float> chunks(tokens * 8);
    for (float& chunk : chunks) chunk = std::abs(random_values(1, random)[0]);
    std::vector<uint16_t> bf16(tokens * kStride, kUntouched);
    std::vector<float> f32(tokens * kStride, -3.0F);
    GpuProduct product = product_of(inputs, tokens <= 8 ? 8 : 64);
    product.norm = {chunks.data(), 8, kColumns, 1e-6F};
    product.part_count = 2;
    product.parts[0].matrix = first.matrix();
    product.parts[1].matrix = second.matrix();
    product.finish = GpuFinish::kGate;
    product.gate = {bf16.data(), kStride, f32.data(), kStride};
    gpu_product(nullptr, product);
    const std::vector<float> gate = multiply_all(first.matrix(), inputs, 0, tokens, tokens);
    const std::vector<float> gated = multiply_all(second.matrix(), inputs, 0, tokens, tokens);
    for (size_t token = 0; token < tokens; ++token) {
      const float factor = factor_of(product.norm, token);
      for (size_t row = 0; row < kStride; ++row) {
        const size_t at = token * kStride + row;
        if (row >= rows) {
          EXPECT_EQ(bf16[at], row < 64 ? 0 : kUntouched) << rows << " rows, row " << row;
          EXPECT_EQ(f32[at], -3.0F) << rows << " rows, row " << row;
          continue;
        }
        const float g = gate[token * rows + row] * factor;
        const float expected = g / (1 + std::exp(-g)) * (gated[token * rows + row] * factor);
        EXPECT_NEAR(static_cast<double>(f32[at]), static_cast<double>(expected),
                    static_cast<double>(std::abs(expected)) * exponential_error())
            << rows << " rows, token " << token << ", row " << row;
        EXPECT_EQ(bf16[at], float_to_bf16(f32[at]));
      }
    }
  }
}

// Blocks take rows in turns, and weights of the next ones are on their way while those at hand are
// finished; the warp that finishes a token has units of its own in between.
TEST_P(GpuProductFinish, what_was_there_is_added_to_rows_in_turns) {
  RandomEngine random(kSeed + 3);
  const uint32_t tokens = std::get<0>(GetParam());
  constexpr size_t kRows = 32 * 13;
  constexpr size_t kManyColumns = 128 * 32;  // four units for each warp
  const Weights weights(Format::kQ4_0, kRows, kManyColumns, random);
  const Inputs inputs(Format::kQ4_0, tokens, kManyColumns, random);
  const std::vector<float> bias = random_values(kRows, random);
  const std::vector<float> before = random_values(tokens * kRows, random);
  std::vector<float> output = before;
  GpuProduct product = product_of(inputs, tokens);
  product.part_count = 1;
  product.parts[0] = {weights.matrix(), bias.data(), output.data(), kRows, true};
  gpu_product(nullptr, product);
  const std::vector<float> plain = multiply_all(weights.matrix(), inputs, 0, tokens, tokens);
  for (size_t at = 0; at < before.size(); ++at) {
    ASSERT_EQ(output[at], plain[at] + bias[at % kRows] + before[at])
        << "token " << at / kRows << ", row " << at % kRows;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokens, GpuProductFinish,
                         testing::Combine(testing::Values(2U, 5U, 13U), testing::Bool()));

}  // namespace
}  // namespace lockstep
