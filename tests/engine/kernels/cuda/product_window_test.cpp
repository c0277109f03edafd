// Windows of tokens that follow one another are the product of all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tests/engine/kernels/cuda/format_cases.h"
#include "tests/engine/kernels/cuda/product_inputs.h"

namespace lockstep {
namespace {

constexpr size_t kSeed = 80;
constexpr uint32_t kTokens = 73;
constexpr size_t kRows = 40;
constexpr size_t kColumns = 256;
constexpr size_t kStride = 72;

class GpuProductWindowsOf : public testing::TestWithParam<Format> {};

TEST_P(GpuProductWindowsOf, give_a_token_the_bits_that_it_has_alone) {
  RandomEngine random(kSeed);
  const Weights weights(GetParam(), kRows, kColumns, random);
  const Inputs inputs(GetParam(), kTokens, kColumns, random);
  const std::vector<float> before = random_values((kTokens + 5) * kRows, random);
  std::vector<float> output = before;
  GpuProduct product;
  product.input = inputs.row(0);
  product.input_stride_bytes = inputs.stride_bytes();
  product.token_count = inputs.token_count();
  product.part_count = 1;
  product.parts[0] = {weights.matrix(), nullptr, output.data(), kRows, true};
  // A token that two windows had would be added twice.
  size_t next = 0;
  for (const size_t limit : {size_t{33}, size_t{7}, size_t{64}, size_t{8}}) {
    product.token_begin = next;
    product.token_limit = limit;
    next += limit;
    gpu_product(nullptr, product);
  }
  ASSERT_GT(product.token_begin, kTokens);
  for (size_t token = 0; token < kTokens; token += 9) {
    const std::vector<float> alone = multiply_all(weights.matrix(), inputs, token, 1, 1);
    for (size_t row = 0; row < kRows; ++row) {
      const size_t at = token * kRows + row;
      ASSERT_EQ(output[at], alone[row] + before[at]) << "seed " << kSeed << ", token " << token;
    }
  }
  for (size_t at = kTokens * kRows; at < output.size(); ++at) ASSERT_EQ(output[at], before[at]);
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuProductWindowsOf, testing::ValuesIn(every_format()),
                         name_of_format);

// It has asked for weights before it knows, and must not end before they have come.
TEST(GpuProductWindow, of_no_tokens_at_all_is_nothing) {
  RandomEngine random(kSeed + 3);
  const Weights weights(Format::kQ4_K, 64, kColumns, random);
  const auto none = std::make_unique<uint32_t>(0);
  GpuProduct product;
  product.token_count = none.get();
  product.token_limit = 64;
  product.part_count = 1;
  product.parts[0].matrix = weights.matrix();
  gpu_product(nullptr, product);
}

// The rows of kTokens tokens, in the forms that a product gives them.
struct Written {
  std::vector<uint16_t> bf16 = std::vector<uint16_t>(kTokens * kStride, 0xABCD);
  std::vector<float> f32 = std::vector<float>(kTokens * kStride, -3.0F);
  std::vector<float> sums = std::vector<float>(kTokens * 2, -3.0F);
  std::vector<float> output = std::vector<float>(kTokens * kRows, -3.0F);

  GpuRows rows() { return {bf16.data(), kStride, f32.data(), kStride}; }
  bool operator==(const Written&) const = default;
};

// By windows of 64, or by others.
void multiply(GpuProduct product, bool windows) {
  product.token_limit = windows ? 64 : 30;
  for (; product.token_begin < kTokens; product.token_begin += product.token_limit) {
    gpu_product(nullptr, product);
  }
}

TEST(GpuProductWindow, norms_and_their_factor_are_of_the_windows_tokens) {
  RandomEngine random(kSeed + 1);
  const Weights weights(Format::kQ5_1, kRows, kColumns, random);
  const Inputs inputs(Format::kQ5_1, kTokens, kColumns, random);
  const std::vector<float> weight = random_values(kRows, random);
  std::vector<float> chunks = random_values(kTokens * 8, random);
  for (float& chunk : chunks) chunk = std::abs(chunk);
  std::vector<uint32_t> rows(kTokens, kGpuNoRow);
  rows[3] = 0;
  rows[70] = 1;
  Written own[2];
  Written some[2];
  for (const bool windows : {false, true}) {
    GpuProduct product;
    product.input = inputs.row(0);
    product.input_stride_bytes = inputs.stride_bytes();
    product.token_count = inputs.token_count();
    product.norm = {chunks.data(), 8, kColumns, 1e-5F};
    product.part_count = 1;
    product.parts[0] = {weights.matrix(), nullptr, own[windows].output.data(), kRows, false};
    product.finish = GpuFinish::kNorms;
    product.norm_count = 2;
    product.norms[0] = {weight.data(), own[windows].rows(), own[windows].sums.data(), 2, nullptr};
    product.norms[1] = {weight.data(), some[windows].rows(), some[windows].sums.data(), 2,
                        rows.data()};
    multiply(product, windows);
  }
  EXPECT_EQ(own[0], own[1]) << "seed " << kSeed + 1;
  EXPECT_EQ(some[0], some[1]) << "seed " << kSeed + 1;
  for (size_t column = 0; column < kRows; ++column) {
    EXPECT_EQ(some[1].f32[kStride + column], own[1].f32[70 * kStride + column]);
  }
  EXPECT_EQ(some[1].f32[2 * kStride], -3.0F);
  EXPECT_NE(own[1].f32[72 * kStride], -3.0F);
  EXPECT_NE(own[1].sums[72 * 2], -3.0F);
}

TEST(GpuProductWindow, gates_are_of_the_windows_tokens) {
  RandomEngine random(kSeed + 2);
  const Weights gate(Format::kQ6_K, kRows, kColumns, random);
  const Weights gated(Format::kQ6_K, kRows, kColumns, random);
  const Inputs inputs(Format::kQ6_K, kTokens, kColumns, random);
  Written written[2];
  for (const bool windows : {false, true}) {
    GpuProduct product;
    product.input = inputs.row(0);
    product.input_stride_bytes = inputs.stride_bytes();
    product.token_count = inputs.token_count();
    product.part_count = 2;
    product.parts[0].matrix = gate.matrix();
    product.parts[1].matrix = gated.matrix();
    product.finish = GpuFinish::kGate;
    product.gate = written[windows].rows();
    multiply(product, windows);
  }
  EXPECT_EQ(written[0], written[1]) << "seed " << kSeed + 2;
  EXPECT_NE(written[1].f32[72 * kStride], -3.0F);
}

}  // namespace
}  // namespace lockstep
