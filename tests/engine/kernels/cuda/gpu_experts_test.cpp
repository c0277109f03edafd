// Mixtures of experts on a GPU.
#include "engine/kernels/gpu_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/base/checked_math.h"
#include "tests/engine/kernels/cuda/format_cases.h"
#include "tests/engine/kernels/cuda/gpu_cache.h"
#include "tests/engine/kernels/cuda/kernel_rounding.h"
#include "tests/engine/kernels/cuda/product_inputs.h"
#include "tests/engine/kernels/random_weights.h"

namespace lockstep {
namespace {

constexpr uint32_t kUntouched = 0xABCDEF;

GpuTestBatch batch_of(uint32_t tokens) {
  GpuTestBatch batch({.tokens = 512, .sequences = 1, .pages = 1, .logits = 512});
  const std::vector<uint32_t> pages = {0};
  const uint32_t sequence = batch.writer().add_sequence(pages);
  for (uint32_t token = 0; token < tokens; ++token) {
    batch.writer().add_prompted(token, token, sequence);
    if (token % 3 == 1) batch.writer().want_logits();
  }
  batch.writer().end();
  return batch;
}

struct Routed {
  std::vector<uint32_t> chosen;
  std::vector<float> weights;
  std::vector<uint32_t> choice_rows;
  std::vector<uint32_t> row_begin;
  std::vector<uint32_t> row_tokens;
};

// `scores`: [token][experts + 3].
Routed route(const std::vector<float>& scores, size_t experts, size_t chosen, unsigned grid_rows,
             const Gating& gating = {}, const std::vector<float>& bias = {}) {
  const size_t stride = experts + 3;
  const size_t tokens = scores.size() / stride;
  const GpuTestBatch batch = batch_of(static_cast<uint32_t>(tokens));
  const size_t rows = tokens * chosen;
  Routed routed{.chosen = std::vector<uint32_t>(rows + 1, kUntouched),
                .weights = std::vector<float>(rows + 1, -1.0F),
                .choice_rows = std::vector<uint32_t>(rows + 1, kUntouched),
                .row_begin = std::vector<uint32_t>(experts + 2, kUntouched),
                .row_tokens = std::vector<uint32_t>(rows + 1, kUntouched)};
  gpu_route_tokens(nullptr, {.batch = batch.batch(),
                             .scores = scores.data(),
                             .score_stride = stride,
                             .expert_count = experts,
                             .chosen_count = chosen,
                             .chosen = routed.chosen.data(),
                             .weights = routed.weights.data(),
                             .choice_rows = routed.choice_rows.data(),
                             .row_begin = routed.row_begin.data(),
                             .row_tokens = routed.row_tokens.data(),
                             .grid_rows = grid_rows,
                             .gating = gating,
                             .bias = bias.empty() ? nullptr : bias.data()});
  EXPECT_EQ(routed.chosen.back(), kUntouched);
  EXPECT_EQ(routed.weights.back(), -1.0F);
  EXPECT_EQ(routed.choice_rows.back(), kUntouched);
  EXPECT_EQ(routed.row_begin.back(), kUntouched);
  EXPECT_EQ(routed.row_tokens.back(), kUntouched);
  return routed;
}

// Few different values, so that many are equal.
std::vector<float> some_scores(size_t tokens, size_t experts, uint32_t seed) {
  std::vector<float> scores = random_floats(tokens * (experts + 3), seed);
  for (float& score : scores) score = std::round(score * 4) / 4 + 0.0F;
  return scores;
}

struct RoutingCase {
  size_t tokens;
  size_t experts;
  size_t chosen;
  unsigned grid_rows;
};

class GpuRoutingOf : public testing::TestWithParam<RoutingCase> {};

TEST_P(GpuRoutingOf, chooses_the_largest_scores_and_their_softmax) {
  const auto [tokens, experts, chosen, grid_rows] = GetParam();
  const std::vector<float> scores = some_scores(tokens, experts, 3);
  const Routed routed = route(scores, experts, chosen, grid_rows);
  for (size_t token = 0; token < tokens; ++token) {
    const float* own = scores.data() + token * (experts + 3);
    std::vector<uint32_t> order(experts);
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return own[a] > own[b]; });
    double sum = 0;
    for (size_t i = 0; i < chosen; ++i) sum += std::exp(double{own[order[i]]} - own[order[0]]);
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(chosen));
    for (size_t i = 0; i < chosen; ++i) {
      ASSERT_EQ(routed.chosen[token * chosen + i], order[i]) << "token " << token;
      const double weight =
          std::exp(double{own[order[i]]} - double{*std::max_element(own, own + experts)}) / sum;
      ASSERT_NEAR(double{routed.weights[token * chosen + i]}, weight, weight * 0x1p-20);
    }
  }
}

TEST_P(GpuRoutingOf, puts_rows_in_the_order_of_experts_and_tokens) {
  const auto [tokens, experts, chosen, grid_rows] = GetParam();
  const Routed routed = route(some_scores(tokens, experts, 4), experts, chosen, grid_rows);
  ASSERT_EQ(routed.row_begin.front(), 0U);
  ASSERT_EQ(routed.row_begin[experts], tokens * chosen);
  uint32_t row = 0;
  for (uint32_t expert = 0; expert < experts; ++expert) {
    ASSERT_EQ(routed.row_begin[expert], row) << "expert " << expert;
    for (size_t choice = 0; choice < tokens * chosen; ++choice) {
      if (routed.chosen[choice] != expert) continue;
      ASSERT_EQ(routed.row_tokens[row], choice / chosen) << "row " << row;
      ASSERT_EQ(routed.choice_rows[choice], row) << "choice " << choice;
      ++row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, GpuRoutingOf,
                         testing::Values(RoutingCase{1, 8, 2, 1}, RoutingCase{7, 5, 5, 3},
                                         RoutingCase{40, 33, 1, 2}, RoutingCase{150, 70, 8, 4},
                                         RoutingCase{5, 64, 32, 1}, RoutingCase{300, 3, 2, 2}));

// The experts that a gating chooses, in order, and their weights.
struct Gated {
  std::vector<uint32_t> chosen;
  std::vector<double> weights;
};

std::vector<double> exact_values(const float* scores, size_t experts, GatingFunction function) {
  std::vector<double> values(scores, scores + experts);
  const double most = *std::ranges::max_element(values);
  double sum = 0;
  for (const double score : values) sum += std::exp(score - most);
  for (double& value : values) {
    if (function == GatingFunction::kSoftmax) value = std::exp(value - most) / sum;
    if (function == GatingFunction::kSigmoid) value = 1 / (1 + std::exp(-value));
    if (function == GatingFunction::kSqrtSoftplus) value = std::sqrt(std::log1p(std::exp(value)));
  }
  return values;
}

Gated exact_gating(const float* scores, size_t experts, size_t chosen, const Gating& gating,
                   const std::vector<float>& bias) {
  const std::vector<double> values = exact_values(scores, experts, gating.function);
  std::vector<double> by_choice = values;
  for (size_t expert = 0; expert < bias.size(); ++expert) by_choice[expert] += double{bias[expert]};
  const size_t size = experts / gating.group_count;
  std::vector<std::pair<double, size_t>> groups;  // the sum, negated, and which
  for (size_t group = 0; group < gating.group_count; ++group) {
    const auto begin = by_choice.begin() + static_cast<std::ptrdiff_t>(group * size);
    std::vector<double> own(begin, begin + static_cast<std::ptrdiff_t>(size));
    std::ranges::sort(own, std::greater());
    groups.emplace_back(gating.group_values > 1 && size > 1 ? -own[0] - own[1] : -own[0], group);
  }
  std::ranges::sort(groups);
  for (size_t closed = gating.chosen_groups; closed < groups.size(); ++closed) {
    std::fill_n(by_choice.begin() + static_cast<std::ptrdiff_t>(groups[closed].second * size), size,
                -1e30);
  }
  Gated gated{.chosen = std::vector<uint32_t>(experts), .weights = {}};
  std::iota(gated.chosen.begin(), gated.chosen.end(), 0U);
  std::ranges::stable_sort(gated.chosen, std::greater(),
                           [&](uint32_t at) { return by_choice[at]; });
  gated.chosen.resize(chosen);
  std::ranges::sort(gated.chosen);
  const bool is_softmax = gating.function == GatingFunction::kChosenSoftmax;
  double sum = 0;
  for (const uint32_t expert : gated.chosen) {
    gated.weights.push_back(is_softmax ? std::exp(values[expert]) : values[expert]);
    sum += gated.weights.back();
  }
  if (!is_softmax) sum = gating.is_normalized ? std::max(sum, kLeastWeightSum) : 1;
  for (double& weight : gated.weights) weight *= double{gating.scale} / sum;
  return gated;
}

void expect_exact_gating(const std::vector<float>& scores, size_t experts, size_t chosen,
                         const Gating& gating, const std::vector<float>& bias) {
  const Routed routed = route(scores, experts, chosen, 2, gating, bias);
  for (size_t token = 0; token < scores.size() / (experts + 3); ++token) {
    const Gated exact =
        exact_gating(scores.data() + token * (experts + 3), experts, chosen, gating, bias);
    for (size_t i = 0; i < chosen; ++i) {
      ASSERT_EQ(routed.chosen[token * chosen + i], exact.chosen[i]) << "token " << token;
      ASSERT_NEAR(double{routed.weights[token * chosen + i]}, exact.weights[i],
                  exact.weights[i] * 0x1p-19);
    }
  }
}

TEST(GpuRouting, weighs_and_chooses_as_the_gating_says) {
  for (const GatingFunction function : {GatingFunction::kChosenSoftmax, GatingFunction::kSoftmax,
                                        GatingFunction::kSigmoid, GatingFunction::kSqrtSoftplus}) {
    for (const size_t experts : {size_t{6}, size_t{72}}) {
      const size_t chosen = experts == 6 ? 2 : 8;
      const std::vector<float> scores = random_floats(40 * (experts + 3), 6);
      const std::vector<float> bias = random_floats(experts, 7);
      for (const Gating& gating :
           {Gating{.function = function}, Gating{.function = function, .is_normalized = true},
            Gating{.function = function, .scale = 2.5F},
            Gating{.function = function, .group_count = 3, .chosen_groups = 2},
            Gating{.function = function,
            .is_normalized = true,
            .group_count = 2,
            .chosen_groups = 1,
            .group_values = 1}}) {
        SCOPED_TRACE(static_cast<int>(function));
        expect_exact_gating(scores, experts, chosen, gating, {});
        expect_exact_gating(scores, experts, chosen, gating, bias);
      }
    }
  }
}

// A group for each lane, of one expert each; and weights whose sum is less than the least.
TEST(GpuRouting, has_as_many_groups_as_a_warp_has_lanes_and_a_least_sum) {
  const std::vector<float> scores = random_floats(5 * 35, 8);
  expect_exact_gating(scores, 32, 3,
                      {.function = GatingFunction::kSigmoid, .group_count = 32, .chosen_groups = 5},
                      {});
  std::vector<float> low = scores;
  for (float& score : low) score -= 30;
  expect_exact_gating(low, 32, 3, {.function = GatingFunction::kSigmoid, .is_normalized = true},
                      {});
}

TEST(GpuRouting, does_not_depend_on_the_tokens_beside) {
  constexpr size_t kExperts = 20;
  const std::vector<float> scores = random_floats(9 * (kExperts + 3), 5);
  const Routed together = route(scores, kExperts, 4, 2);
  for (size_t token = 0; token < 9; ++token) {
    const auto first = scores.begin() + static_cast<std::ptrdiff_t>(token * (kExperts + 3));
    const Routed alone = route({first, first + kExperts + 3}, kExperts, 4, 1);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(alone.chosen[i], together.chosen[token * 4 + i]);
      EXPECT_EQ(alone.weights[i], together.weights[token * 4 + i]);
    }
  }
}

// None of what is added after the largest score's changes the sum, but all of it together would.
TEST(GpuRouting, adds_from_the_largest_score_to_the_least_however_large_they_are) {
  constexpr size_t kExperts = 32;
  std::vector<float> scores(kExperts + 3, 500 - 17.5F);
  scores[20] = 500;
  const Routed routed = route(scores, kExperts, kExperts, 1);
  // The others are lost in the sum one by one, and together they are not.
  EXPECT_EQ(routed.weights[20], 1.0F);
  for (size_t expert = 0; expert < kExperts; ++expert) {
    if (expert == 20) continue;
    const double weight = std::exp(-17.5F);
    EXPECT_NEAR(routed.weights[expert], weight, weight * exponential_error()) << expert;
  }
}

// The token's results show that they are of no use.
TEST(GpuRouting, a_score_that_is_not_finite_is_chosen_and_spoils_its_token_alone) {
  constexpr size_t kExperts = 6;
  for (const float bad : {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> scores = random_floats(3 * (kExperts + 3), 6);
    scores[kExperts + 3 + 4] = bad;
    const Routed routed = route(scores, kExperts, 2, 1);
    EXPECT_TRUE(routed.chosen[2] == 4 || routed.chosen[3] == 4);
    EXPECT_TRUE(std::isnan(routed.weights[2]) || std::isnan(routed.weights[3]));
    for (const size_t other : {0, 1, 4, 5}) EXPECT_TRUE(std::isfinite(routed.weights[other]));
  }
}

// Rows of five experts, of which one has none and one more than a block multiplies at once.
class GpuExpertProductOf : public testing::TestWithParam<Format> {
 protected:
  static constexpr size_t kExperts = 5;
  static constexpr size_t kTokens = 64;
  static constexpr size_t kRows = 48;  // of an expert's weights

  GpuExpertProductOf()
      : columns_(traits(GetParam()).block_elements == 256 ? 512 : 96),
        inputs_(GetParam(), kTokens, columns_, random_),
        sums_(random_floats(kTokens * chunks(), 9)),
        gates_(GetParam(), columns_, random_),
        ups_(GetParam(), columns_, random_) {
    for (float& sum : sums_) sum = std::abs(sum) + 1;
    const std::vector<uint32_t> counts = {3, 0, 70, 1, 17};
    row_begin_ = {0};
    for (const uint32_t count : counts) {
      for (uint32_t row = 0; row < count; ++row) {
        row_tokens_.push_back((row * 7 + count) % kTokens);
      }
      row_begin_.push_back(static_cast<uint32_t>(row_tokens_.size()));
    }
  }

  // Matrices at equal distances.
  class Experts {
   public:
    Experts(Format format, size_t columns, RandomEngine& random)
        : stride_(round_up<size_t>(gpu_matrix_bytes(format, kRows, columns), 256)),
          planes_(std::make_shared<GpuBytes>(kExperts * stride_)),
          matrix_{format, kRows, columns, planes_->data()} {
      for (size_t expert = 0; expert < kExperts; ++expert) {
        const auto file = random_rows(format, kRows, columns, random);
        pack_gpu_rows({format, kRows, columns, file.data(), row_bytes(format, columns), 0, kRows,
                       planes_->data() + expert * stride_});
      }
    }
    size_t stride() const { return stride_; }
    GpuMatrix matrix(size_t expert) const {
      GpuMatrix matrix = matrix_;
      matrix.planes += expert * stride_;
      return matrix;
    }

   private:
    size_t stride_;
    std::shared_ptr<GpuBytes> planes_;
    GpuMatrix matrix_;
  };

  size_t chunks() const { return divide_up<size_t>(columns_, 32); }
  size_t row_count() const { return row_tokens_.size(); }
  size_t expert_of(size_t row) const {
    size_t expert = 0;
    while (row >= row_begin_[expert + 1]) ++expert;
    return expert;
  }
  GpuNormFactor norm() const { return {sums_.data(), chunks(), columns_, 1e-5F}; }

  RandomEngine random_{41};
  size_t columns_;
  Inputs inputs_;
  std::vector<float> sums_;
  Experts gates_;
  Experts ups_;
  std::vector<uint32_t> row_begin_;
  std::vector<uint32_t> row_tokens_;
};

TEST_P(GpuExpertProductOf, a_row_has_the_bits_of_its_token_with_its_expert) {
  std::vector<float> expected(row_count() * kRows);
  for (size_t expert = 0; expert < kExperts; ++expert) {
    std::vector<float> gated(kTokens * kRows);
    GpuProduct product;
    product.input = inputs_.row(0);
    product.input_stride_bytes = inputs_.stride_bytes();
    product.token_count = inputs_.token_count();
    product.token_limit = kTokens;
    product.norm = norm();
    product.part_count = 2;
    product.parts[0].matrix = gates_.matrix(expert);
    product.parts[1].matrix = ups_.matrix(expert);
    product.finish = GpuFinish::kGate;
    product.gate.f32 = gated.data();
    product.gate.f32_stride = kRows;
    gpu_product(nullptr, product);
    for (size_t row = row_begin_[expert]; row < row_begin_[expert + 1]; ++row) {
      std::copy_n(gated.data() + row_tokens_[row] * kRows, kRows, expected.data() + row * kRows);
    }
  }
  for (const size_t limit : {size_t{8}, size_t{64}}) {
    std::vector<float> gated((row_count() + 1) * kRows, -7.0F);
    GpuExpertProduct experts;
    experts.product.input = inputs_.row(0);
    experts.product.input_stride_bytes = inputs_.stride_bytes();
    experts.product.token_limit = limit;
    experts.product.norm = norm();
    experts.product.part_count = 2;
    experts.product.parts[0].matrix = gates_.matrix(0);
    experts.product.parts[1].matrix = ups_.matrix(0);
    experts.product.finish = GpuFinish::kGate;
    experts.product.gate.f32 = gated.data();
    experts.product.gate.f32_stride = kRows;
    experts.matrix_stride_bytes[0] = gates_.stride();
    experts.matrix_stride_bytes[1] = ups_.stride();
    experts.expert_count = kExperts;
    experts.row_begin = row_begin_.data();
    experts.row_tokens = row_tokens_.data();
    gpu_expert_product(nullptr, experts);
    for (size_t at = 0; at < expected.size(); ++at) {
      ASSERT_EQ(gated[at], expected[at]) << "row " << at / kRows << ", limit " << limit;
    }
    EXPECT_EQ(gated[expected.size()], -7.0F);
  }
}

// Rows that are read where they lie, and no gate.
TEST_P(GpuExpertProductOf, an_input_by_row_has_the_bits_that_it_has_alone) {
  const Inputs rows(GetParam(), row_count(), columns_, random_);
  // In no order, and with space for choices that there are not.
  std::vector<uint32_t> chosen(row_count() + 3, kUntouched);
  std::vector<uint32_t> choice_rows(row_count() + 3, kUntouched);
  for (uint32_t choice = 0; choice < row_count(); ++choice) {
    const auto row = static_cast<uint32_t>(choice * 40 % row_count());
    chosen[choice] = static_cast<uint32_t>(expert_of(row));
    choice_rows[choice] = row;
  }
  std::vector<float> output((row_count() + 1) * kRows, -7.0F);
  GpuExpertProduct experts;
  experts.product.input = rows.row(0);
  experts.product.input_stride_bytes = rows.stride_bytes();
  experts.product.token_limit = 16;
  experts.product.part_count = 1;
  experts.product.parts[0].matrix = gates_.matrix(0);
  experts.product.parts[0].output = output.data();
  experts.product.parts[0].output_stride = kRows;
  experts.matrix_stride_bytes[0] = gates_.stride();
  experts.expert_count = kExperts;
  experts.row_begin = row_begin_.data();
  experts.choice_count = chosen.size();
  experts.chosen = chosen.data();
  experts.choice_rows = choice_rows.data();
  gpu_expert_product(nullptr, experts);
  for (const size_t row : {size_t{0}, size_t{2}, size_t{3}, size_t{72}, size_t{73}, size_t{90}}) {
    const auto alone = multiply_all(gates_.matrix(expert_of(row)), rows, row, 1, 1);
    for (size_t at = 0; at < kRows; ++at) ASSERT_EQ(output[row * kRows + at], alone[at]) << row;
  }
  EXPECT_EQ(output[row_count() * kRows], -7.0F);
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuExpertProductOf, testing::ValuesIn(every_format()),
                         name_of_format);

// The products of three experts with eleven tokens, in rows of no order.
struct Products {
  static constexpr uint32_t kTokens = 11;
  static constexpr size_t kChosen = 3;

  explicit Products(size_t width)
      : columns(width),
        values(random_floats(kTokens * kChosen * columns, 7)),
        weights(random_floats(kTokens * kChosen, 8)) {
    for (uint32_t choice = 0; choice < kTokens * kChosen; ++choice) {
      rows.push_back(choice * 10 % (kTokens * kChosen));
    }
  }

  GpuExpertSum sum_into(const GpuBatch& batch, std::vector<float>& output) const {
    return {.batch = batch,
            .products = values.data(),
            .product_stride = columns,
            .weights = weights.data(),
            .choice_rows = rows.data(),
            .chosen_count = kChosen,
            .columns = columns,
            .output = output.data(),
            .output_stride = columns + 5};
  }

  size_t columns;
  std::vector<float> values;
  std::vector<float> weights;
  std::vector<uint32_t> rows;
};

TEST(GpuExpertSum, adds_a_tokens_products_in_their_order) {
  const GpuTestBatch batch = batch_of(Products::kTokens);
  for (const size_t columns : {size_t{32}, size_t{200}}) {
    const Products products(columns);
    for (const bool accumulate : {false, true}) {
      const std::vector<float> before = random_floats((Products::kTokens + 1) * (columns + 5), 9);
      std::vector<float> output = before;
      GpuExpertSum sum = products.sum_into(batch.batch(), output);
      sum.accumulate = accumulate;
      sum.grid_rows = 2;
      gpu_sum_experts(nullptr, sum);
      for (size_t at = 0; at < output.size(); ++at) {
        const size_t token = at / (columns + 5);
        const size_t column = at % (columns + 5);
        float y = before[at];
        if (token < Products::kTokens && column < columns) {
          if (!accumulate) y = 0;
          for (size_t i = 0; i < Products::kChosen; ++i) {
            const size_t choice = token * Products::kChosen + i;
            y = std::fma(products.weights[choice],
                         products.values[products.rows[choice] * columns + column], y);
          }
        }
        ASSERT_EQ(output[at], y) << "token " << token << ", column " << column;
      }
    }
  }
}

TEST(GpuExpertSum, scales_each_experts_product_and_adds_its_bias) {
  constexpr size_t kColumns = 40;
  constexpr size_t kStride = 64;
  const GpuTestBatch batch = batch_of(Products::kTokens);
  const Products products(kColumns);
  const std::vector<float> biases = random_floats(4 * kStride, 10);
  const std::vector<float> scales = random_floats(4, 11);
  std::vector<uint32_t> chosen(Products::kTokens * Products::kChosen);
  for (uint32_t choice = 0; choice < chosen.size(); ++choice) chosen[choice] = choice * 7 % 4;
  std::vector<float> output(Products::kTokens * (kColumns + 5));
  GpuExpertSum sum = products.sum_into(batch.batch(), output);
  sum.biases = biases.data();
  sum.bias_stride = kStride;
  sum.scales = scales.data();
  sum.chosen = chosen.data();
  gpu_sum_experts(nullptr, sum);
  for (size_t token = 0; token < Products::kTokens; ++token) {
    for (size_t column = 0; column < kColumns; ++column) {
      float y = 0;
      for (size_t i = 0; i < Products::kChosen; ++i) {
        const size_t choice = token * Products::kChosen + i;
        y = std::fma(
            products.weights[choice],
            products.values[products.rows[choice] * kColumns + column] * scales[chosen[choice]] +
                biases[chosen[choice] * kStride + column],
            y);
      }
      ASSERT_EQ(output[token * (kColumns + 5) + column], y) << token << ", column " << column;
    }
  }
}

// As a kernel of their own gives them.
TEST(GpuExpertSum, its_norms_have_the_bits_of_norm_rows) {
  constexpr size_t kColumns = 200;
  constexpr size_t kPadded = 224;
  const GpuTestBatch batch = batch_of(Products::kTokens);
  const Products products(kColumns);
  const std::vector<float> weight = random_floats(kColumns, 10);
  struct Rows {
    std::vector<uint16_t> rows = std::vector<uint16_t>(12 * kPadded, 0x1234);
    std::vector<float> sums = std::vector<float>(12 * kPadded / 32, -1.0F);
  };
  for (const GpuRowSet which : {GpuRowSet::kTokens, GpuRowSet::kLogits}) {
    Rows found;
    Rows expected;
    std::vector<float> output(Products::kTokens * (kColumns + 5));
    GpuExpertSum sum = products.sum_into(batch.batch(), output);
    sum.norm_count = 1;
    sum.norms[0] = {
        .weight = weight.data(),
        .rows = {.bf16 = found.rows.data(), .bf16_stride = kPadded},
        .chunk_sums = found.sums.data(),
        .chunk_stride = kPadded / 32,
        .row_of_token = which == GpuRowSet::kLogits ? batch.batch().logit_rows : nullptr};
    gpu_sum_experts(nullptr, sum);
    gpu_norm_rows(nullptr, {.batch = batch.batch(),
                            .which = which,
                            .residual = output.data(),
                            .residual_stride = kColumns + 5,
                            .columns = kColumns,
                            .weight = weight.data(),
                            .rows = {.bf16 = expected.rows.data(), .bf16_stride = kPadded},
                            .sums = expected.sums.data(),
                            .sum_stride = kPadded / 32});
    EXPECT_EQ(found.rows, expected.rows);
    EXPECT_EQ(found.sums, expected.sums);
  }
}

}  // namespace
}  // namespace lockstep
