// Operations on values on a GPU, against float64.
#include "engine/kernels/gpu_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/tensor/format.h"
#include "tests/engine/kernels/cuda/gpu_cache.h"
#include "tests/engine/kernels/exact_activation.h"

namespace lockstep {
namespace {

constexpr uint16_t kUntouched = 0x1234;
constexpr float kLeftAlone = -5.0F;
constexpr double kFunction = 0x1p-20;  // of a value, a function's few units

// `tokens` of one sequence, each at seven times its number, logits wanted of every third.
GpuTestBatch batch_of(uint32_t tokens) {
  GpuTestBatch batch({.tokens = 40, .sequences = 1, .pages = 8, .logits = 40});
  const std::vector<uint32_t> pages = {3, 1, 2, 4, 5, 6};
  const uint32_t sequence = batch.writer().add_sequence(pages);
  for (uint32_t token = 0; token < tokens; ++token) {
    batch.writer().add_prompted(token, 7 * token, sequence);
    if (token % 3 == 1) batch.writer().want_logits();
  }
  batch.writer().end();
  return batch;
}

// A kernel's results: [row][column] in f32, and both forms, with space for one row more.
class Destination {
 public:
  Destination(size_t rows, size_t columns)
      : rows_(rows),
        columns_(columns),
        floats_((rows + 1) * (columns + 7), kLeftAlone),
        bf16_((rows + 1) * padded(), kUntouched),
        f32_((rows + 1) * (columns + 3), kLeftAlone) {}

  GpuValues values() {
    return {.floats = floats_.data(),
            .stride = columns_ + 7,
            .rows = {bf16_.data(), padded(), f32_.data(), columns_ + 3}};
  }
  float at(size_t row, size_t column) const { return floats_[row * (columns_ + 7) + column]; }

  // All of them are of the same values; nothing else is written.
  void expect_alike() const {
    for (size_t row = 0; row <= rows_; ++row) {
      for (size_t column = 0; column < padded(); ++column) {
        const bool there = row < rows_ && column < columns_;
        const uint16_t form = bf16_[row * padded() + column];
        if (column < columns_) {
          ASSERT_EQ(f32_[row * (columns_ + 3) + column], at(row, column)) << row;
        }
        if (there) {
          ASSERT_EQ(form, float_to_bf16(at(row, column))) << row << ", column " << column;
        } else {
          ASSERT_EQ(form, row < rows_ ? 0 : kUntouched) << row << ", column " << column;
        }
      }
      if (row == rows_) {
        EXPECT_EQ(at(row, 0), kLeftAlone);
      }
      EXPECT_EQ(at(row, columns_), kLeftAlone);
    }
  }

 private:
  size_t padded() const { return (columns_ + 31) / 32 * 32; }

  size_t rows_;
  size_t columns_;
  std::vector<float> floats_;
  std::vector<uint16_t> bf16_;
  std::vector<float> f32_;
};

std::vector<Activation> all_activations() {
  std::vector<Activation> all;
  for (size_t number = 0; number < kActivationFunctionCount; ++number) {
    const auto function = static_cast<ActivationFunction>(number);
    Activation activation = function;
    if (function == ActivationFunction::kXielu) activation.parameters = {0.8F, 1.3F, 0.5F, -1e-6F};
    if (function == ActivationFunction::kClippedSwiglu) activation.parameters = {1.702F, 1.5F};
    all.push_back(activation);
  }
  return all;
}

// From -9 to 9, and 0.
std::vector<float> wide_floats(size_t count, uint32_t seed) {
  std::vector<float> values = random_floats(count, seed);
  for (float& value : values) value *= 3;
  values[0] = 0;
  return values;
}

constexpr size_t kRows = 5;
constexpr size_t kColumns = 150;
constexpr size_t kStride = 155;

// A step on kRows tokens' values.
struct Elements {
  GpuTestBatch batch = batch_of(kRows);
  std::vector<float> x = wide_floats(kRows * kStride, 4);
  std::vector<float> y = wide_floats(kRows * kStride, 5);
  Destination out{kRows, kColumns};

  GpuElementwise step(GpuFunction function) {
    return {.walk = {.batch = batch.batch(), .grid_rows = 2},
            .function = function,
            .x = x.data(),
            .x_stride = kStride,
            .y = y.data(),
            .y_stride = kStride,
            .columns = kColumns,
            .output = out.values()};
  }
  // `exact`: of x, y and the row; `error`: likewise.
  template <typename Exact, typename Error>
  void expect(Exact exact, Error error) const {
    out.expect_alike();
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t column = 0; column < kColumns; ++column) {
        const double own = x[row * kStride + column];
        const double other = y[row * kStride + column];
        ASSERT_NEAR(double{out.at(row, column)}, exact(own, other, row), error(own, other))
            << "row " << row << ", column " << column << " of " << own << " and " << other;
      }
    }
  }
};

TEST(GpuElements, sums_scales_bounds_and_copies_are_exact) {
  const auto run = [](GpuFunction function, auto exact) {
    Elements elements;
    GpuElementwise step = elements.step(function);
    step.scale = 0.7F;
    gpu_compute_elements(nullptr, step);
    elements.expect([&](double x, double y,
                        size_t) { return exact(static_cast<float>(x), static_cast<float>(y)); },
                    [](double, double) { return 0.0; });
  };
  run(GpuFunction::kZero, [](float, float) { return 0.0F; });
  run(GpuFunction::kCopy, [](float x, float) { return x; });
  run(GpuFunction::kAdd, [](float x, float y) { return x + y; });
  run(GpuFunction::kScale, [](float x, float) { return 0.7F * x; });
  run(GpuFunction::kClamp, [](float x, float) { return std::clamp(x, -0.7F, 0.7F); });
}

TEST(GpuElements, a_soft_cap_is_a_tangents) {
  Elements elements;
  GpuElementwise step = elements.step(GpuFunction::kSoftCap);
  step.scale = 2.5F;
  gpu_compute_elements(nullptr, step);
  elements.expect([](double x, double, size_t) { return 2.5 * std::tanh(x / 2.5); },
                  [](double x, double) { return std::fabs(x) * kFunction; });
}

// The exponential makes more than a few units of the rounding of its argument.
double activation_error(double x) {
  return std::fabs(x) * kFunction * (1 + x * x / 8) + 1e-12;
}

TEST(GpuElements, activations_are_those_of_the_table) {
  for (const Activation& activation : all_activations()) {
    SCOPED_TRACE(kActivationNames[static_cast<size_t>(activation.function)]);
    Elements elements;
    GpuElementwise step = elements.step(GpuFunction::kActivation);
    step.activation = activation;
    gpu_compute_elements(nullptr, step);
    const bool squares = activation.function == ActivationFunction::kReluSquared ||
                         activation.function == ActivationFunction::kXielu;
    elements.expect([&](double x, double, size_t) { return exact_activation(activation, x); },
                    [&](double x, double) {
                      const double size = activation_error(x) * (squares ? 1 + std::fabs(x) : 1);
                      return activation.function == ActivationFunction::kSigmoid ? kFunction : size;
                    });
  }
}

TEST(GpuElements, gates_multiply_and_what_clipped_swiglu_gates_is_bounded) {
  for (const Activation& activation : all_activations()) {
    SCOPED_TRACE(kActivationNames[static_cast<size_t>(activation.function)]);
    Elements elements;
    GpuElementwise step = elements.step(GpuFunction::kGate);
    step.activation = activation;
    gpu_compute_elements(nullptr, step);
    const auto gated = [&](double y) {
      const bool is_bounded = activation.function == ActivationFunction::kClippedSwiglu;
      return is_bounded ? std::clamp(y, -1.5, 1.5) + 1 : y;
    };
    elements.expect(
        [&](double x, double y, size_t) { return exact_activation(activation, x) * gated(y); },
        [&](double x, double y) {
          return (activation_error(x) * (1 + std::fabs(x)) + kFunction) * (1 + std::fabs(y));
        });
  }
}

TEST(GpuElements, numbers_far_from_0_are_the_functions_limits_and_nans_stay) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Activation& activation : all_activations()) {
    SCOPED_TRACE(kActivationNames[static_cast<size_t>(activation.function)]);
    Elements elements;
    for (size_t i = 0; i < 4; ++i) {
      elements.x[i] = std::array{-120.0F, 60.0F, 1e4F, std::nanf("")}[i];
      elements.y[i] = 1;
    }
    GpuElementwise step = elements.step(GpuFunction::kActivation);
    step.activation = activation;
    gpu_compute_elements(nullptr, step);
    for (size_t i = 0; i < 3; ++i) {
      const double exact = exact_activation(activation, elements.x[i]);
      ASSERT_NEAR(double{elements.out.at(0, i)}, exact, std::fabs(exact) * kFunction + 1e-30);
      ASSERT_LT(std::fabs(elements.out.at(0, i)), infinity);
    }
    EXPECT_TRUE(std::isnan(elements.out.at(0, 3)));
  }
}

TEST(GpuElements, rows_are_scaled_by_a_factor_each) {
  Elements elements;
  GpuElementwise step = elements.step(GpuFunction::kScaleRows);
  step.activation = ActivationFunction::kSigmoid;
  gpu_compute_elements(nullptr, step);
  elements.expect(
      [&](double x, double, size_t row) { return x * logistic(elements.y[row * kStride]); },
      [](double x, double) { return std::fabs(x) * kFunction; });
}

TEST(GpuElements, a_temperature_goes_by_the_tokens_position) {
  Elements elements;
  GpuElementwise step = elements.step(GpuFunction::kTemperature);
  step.scale = 0.3F;
  step.period = 5;
  step.offset = 1;
  gpu_compute_elements(nullptr, step);
  elements.expect(
      [](double x, double, size_t row) {
        const double periods = std::floor(static_cast<double>(7 * row + 1) / 5);
        return x * (1 + double{0.3F} * std::log(1 + periods));
      },
      [](double x, double) { return std::fabs(x) * 0x1p-22; });
}

TEST(GpuElements, rows_of_logits_are_selected_or_their_own) {
  for (const bool selects : {false, true}) {
    const GpuTestBatch batch = batch_of(11);
    const std::vector<float> x = random_floats(11 * 40, 8);
    Destination out(4, 40);
    gpu_compute_elements(
        nullptr, {.walk = {.batch = batch.batch(), .which = GpuRowSet::kLogits, .grid_rows = 3},
                  .selects = selects,
                  .x = x.data(),
                  .x_stride = 40,
                  .columns = 40,
                  .output = out.values()});
    out.expect_alike();
    for (size_t row = 0; row < 4; ++row) {
      const size_t from = selects ? 3 * row + 1 : row;
      for (size_t i = 0; i < 40; ++i) ASSERT_EQ(out.at(row, i), x[from * 40 + i]) << row;
    }
  }
}

TEST(GpuElements, other_ranks_copies_get_the_rows_in_f32) {
  Elements elements;
  GpuElementwise step = elements.step(GpuFunction::kCopy);
  std::vector<float> own(kRows * 200, kLeftAlone);
  std::vector<float> copies[2] = {own, own};
  step.output = {.rows = {.f32 = own.data() + 20, .f32_stride = 200}};
  step.copy_count = 2;
  for (size_t copy = 0; copy < 2; ++copy) step.copies[copy] = copies[copy].data() + 20;
  gpu_compute_elements(nullptr, step);
  EXPECT_EQ(own[19], kLeftAlone);
  EXPECT_EQ(own[200 + 20 + 7], elements.x[kStride + 7]);
  for (const std::vector<float>& copy : copies) EXPECT_EQ(copy, own);
  step.function = GpuFunction::kMinusZero;
  step.x = nullptr;
  gpu_compute_elements(nullptr, step);
  EXPECT_TRUE(own[227] == 0 && std::signbit(own[227]));
}

// Expert 0 and 3 have no rows, 1 has two, 2 three, 4 one.
TEST(GpuElements, rows_of_experts_have_their_experts_scales_and_biases_and_their_tokens_positions) {
  const GpuTestBatch batch = batch_of(3);
  const std::vector<uint32_t> begins = {0, 0, 2, 5, 5, 6};
  const std::vector<uint32_t> experts = {1, 1, 2, 2, 2, 4};
  const std::vector<uint32_t> tokens = {0, 2, 0, 1, 2, 1};
  const std::vector<float> x = random_floats(6 * 40, 11);
  const std::vector<float> y = random_floats(6 * 40, 12);
  const std::vector<float> x_biases = random_floats(5 * 48, 13);
  const std::vector<float> y_biases = random_floats(5 * 64, 14);
  const std::vector<float> y_scales = random_floats(5, 15);
  Destination out(6, 40);
  GpuElementwise step = {
      .walk = {.batch = batch.batch(), .rows_each = 2, .row_tokens = tokens.data(), .grid_rows = 4},
      .function = GpuFunction::kAdd,
      .x = x.data(),
      .x_stride = 40,
      .y = y.data(),
      .y_stride = 40,
      .x_biases = {x_biases.data(), 48},
      .y_biases = {y_biases.data(), 64, y_scales.data()},
      .row_begin = begins.data(),
      .expert_count = 5,
      .columns = 40,
      .output = out.values()};
  gpu_compute_elements(nullptr, step);
  out.expect_alike();
  for (size_t row = 0; row < 6; ++row) {
    for (size_t i = 0; i < 40; ++i) {
      const float first = x[row * 40 + i] + x_biases[experts[row] * 48 + i];
      const float second =
          y[row * 40 + i] * y_scales[experts[row]] + y_biases[experts[row] * 64 + i];
      ASSERT_EQ(out.at(row, i), first + second) << row << ", column " << i;
    }
  }
  step.function = GpuFunction::kTemperature;
  step.x_biases = {};
  step.y_biases = {};
  step.scale = 1;
  gpu_compute_elements(nullptr, step);
  for (size_t row = 0; row < 6; ++row) {
    const double factor = 1 + std::log(1.0 + 7 * tokens[row]);
    const double exact = factor * x[row * 40];
    ASSERT_NEAR(double{out.at(row, 0)}, exact, std::fabs(exact) * 0x1p-22) << row;
  }
}

TEST(GpuWholeNorms, are_those_of_float64) {
  for (const size_t columns : {size_t{32}, size_t{100}, size_t{256}, size_t{1000}}) {
    const std::vector<float> weight = random_floats(columns, 21);
    const std::vector<float> bias = random_floats(columns, 22);
    std::vector<float> x = random_floats(11 * (columns + 1), 23);
    for (float& value : x) value += 3;  // a mean that counts
    for (const bool subtracts_mean : {false, true}) {
      for (const bool has_weight : {false, true}) {
        const GpuTestBatch batch = batch_of(11);
        Destination out(11, columns);
        gpu_norm_whole_rows(nullptr, {.walk = {.batch = batch.batch(), .grid_rows = 3},
                                      .x = x.data(),
                                      .x_stride = columns + 1,
                                      .columns = columns,
                                      .subtracts_mean = subtracts_mean,
                                      .epsilon = 1e-5F,
                                      .weight = has_weight ? weight.data() : nullptr,
                                      .bias = has_weight && subtracts_mean ? bias.data() : nullptr,
                                      .output = out.values()});
        out.expect_alike();
        const auto count = static_cast<double>(columns);
        for (size_t row = 0; row < 11; ++row) {
          const float* own = x.data() + row * (columns + 1);
          double mean = 0;
          double squares = 0;
          for (size_t i = 0; i < columns; ++i) mean += own[i] / count;
          if (!subtracts_mean) mean = 0;
          for (size_t i = 0; i < columns; ++i) squares += std::pow(own[i] - mean, 2) / count;
          const double factor = 1 / std::sqrt(squares + double{1e-5F});
          for (size_t i = 0; i < columns; ++i) {
            double exact = (own[i] - mean) * factor;
            if (has_weight) exact *= double{weight[i]};
            if (has_weight && subtracts_mean) exact += double{bias[i]};
            ASSERT_NEAR(double{out.at(row, i)}, exact, 8 * kFunction) << row << ", " << i;
          }
        }
      }
    }
  }
}

// Two ranks: each has its own chunks' sums, by itself and in the other's copy, or -0 in the place
// of the other's.
TEST(GpuWholeNorms, of_columns_of_several_ranks_have_the_factor_of_all) {
  constexpr size_t kAll = 100;
  constexpr size_t kFirst = 64;
  const std::vector<float> x = random_floats(5 * kAll, 24);
  const std::vector<float> weight = random_floats(kAll, 25);
  const GpuTestBatch batch = batch_of(5);
  std::vector<float> expected_sums(6 * 4);
  std::vector<float> unused(6 * 128);
  const std::vector<float> ones(kAll, 1.0F);
  gpu_norm_rows(nullptr, {.batch = batch.batch(),
                          .residual = x.data(),
                          .residual_stride = kAll,
                          .columns = kAll,
                          .weight = ones.data(),
                          .rows = {.f32 = unused.data(), .f32_stride = 128},
                          .sums = expected_sums.data(),
                          .sum_stride = 4});
  std::vector<float> sums[2];
  for (std::vector<float>& each : sums) each.assign(6 * 4, -3.0F);
  for (size_t rank = 0; rank < 2; ++rank) {
    const size_t begin = rank == 0 ? 0 : kFirst;
    const size_t columns = rank == 0 ? kFirst : kAll - kFirst;
    GpuChunkSums step = {.walk = {.batch = batch.batch(), .grid_rows = 2},
                         .x = x.data() + begin,
                         .x_stride = kAll,
                         .columns = columns,
                         .sums = sums[rank].data() + begin / 32,
                         .sum_stride = 4,
                         .copy_count = 1,
                         .copies = {sums[1 - rank].data() + begin / 32}};
    gpu_sum_chunks(nullptr, step);
    std::vector<float> alone(6 * 4, -3.0F);
    step.sums = alone.data();
    step.first = begin / 32;
    step.all_chunks = 4;
    step.copy_count = 0;
    gpu_sum_chunks(nullptr, step);
    for (size_t at = 0; at < 24; ++at) {
      const bool is_own = (at % 4 < 2) == (rank == 0);
      const float wanted = at >= 20 ? -3.0F : is_own ? expected_sums[at] : -0.0F;
      ASSERT_EQ(alone[at], wanted) << at;
      ASSERT_EQ(std::signbit(alone[at]), std::signbit(wanted)) << at;
    }
  }
  for (size_t rank = 0; rank < 2; ++rank) {
    const size_t begin = rank == 0 ? 0 : kFirst;
    const size_t columns = rank == 0 ? kFirst : kAll - kFirst;
    for (size_t at = 0; at < 20; ++at) ASSERT_EQ(sums[rank][at], expected_sums[at]) << at;
    ASSERT_EQ(sums[rank][20], -3.0F);
    Destination out(5, columns);
    gpu_norm_whole_rows(nullptr, {.walk = {.batch = batch.batch()},
                                  .x = x.data() + begin,
                                  .x_stride = kAll,
                                  .columns = columns,
                                  .epsilon = 1e-5F,
                                  .weight = weight.data() + begin,
                                  .output = out.values(),
                                  .factor = {sums[rank].data(), 4, kAll, 1e-5F}});
    out.expect_alike();
    for (size_t row = 0; row < 5; ++row) {
      double squares = 0;
      for (size_t i = 0; i < kAll; ++i) squares += std::pow(x[row * kAll + i], 2) / kAll;
      for (size_t i = 0; i < columns; ++i) {
        const double exact = x[row * kAll + begin + i] / std::sqrt(squares + double{1e-5F}) *
                             double{weight[begin + i]};
        ASSERT_NEAR(double{out.at(row, i)}, exact, 8 * kFunction) << row << ", " << i;
      }
    }
  }
}

struct HeadCase {
  bool is_normed;
  bool subtracts_mean;
  size_t norm_stride;  // 1000: no weight
  unsigned rotated;
  RotaryPairs pairs;
};

TEST(GpuHeadRows, are_normed_and_rotated_each_by_itself) {
  constexpr unsigned kHeads = 6;
  constexpr unsigned kDimension = 40;
  constexpr size_t kRow = kHeads * kDimension;
  const std::vector<float> x = random_floats(9 * (kRow + 2), 31);
  const std::vector<float> weight = random_floats(kRow, 32);
  std::vector<float> table = random_floats(size_t{9} * 44, 33);
  for (const HeadCase& some : {HeadCase{true, false, 0, 0, RotaryPairs::kHalves},
                               HeadCase{true, false, 1000, 24, RotaryPairs::kHalves},
                               HeadCase{true, true, kDimension, 40, RotaryPairs::kInterleaved},
                               HeadCase{false, false, 1000, 40, RotaryPairs::kInterleaved},
                               HeadCase{false, false, 1000, 24, RotaryPairs::kHalves}}) {
    const GpuTestBatch batch = batch_of(9);
    std::vector<float> out(10 * (kRow + 5), kLeftAlone);
    gpu_treat_head_rows(nullptr, {.walk = {.batch = batch.batch(), .grid_rows = 2},
                                  .input = x.data(),
                                  .input_stride = kRow + 2,
                                  .head_count = kHeads,
                                  .head_dimension = kDimension,
                                  .is_normed = some.is_normed,
                                  .subtracts_mean = some.subtracts_mean,
                                  .norm = some.norm_stride == 1000 ? nullptr : weight.data(),
                                  .norm_stride = some.norm_stride == 1000 ? 0 : some.norm_stride,
                                  .epsilon = 1e-5F,
                                  .pairs = some.pairs,
                                  .rotary_table = some.rotated == 0 ? nullptr : table.data(),
                                  .rotary_stride = 44,
                                  .rotary_dimensions = some.rotated,
                                  .output = out.data(),
                                  .output_stride = kRow + 5});
    for (size_t token = 0; token < 9; ++token) {
      for (size_t head = 0; head < kHeads; ++head) {
        const float* own = x.data() + token * (kRow + 2) + head * kDimension;
        std::vector<double> exact(own, own + kDimension);
        double mean = 0;
        double squares = 0;
        for (const double value : exact) mean += value / kDimension;
        if (!some.subtracts_mean) mean = 0;
        for (const double value : exact) squares += std::pow(value - mean, 2) / kDimension;
        for (size_t i = 0; i < kDimension && some.is_normed; ++i) {
          exact[i] = (exact[i] - mean) / std::sqrt(squares + double{1e-5F});
          if (some.norm_stride != 1000) exact[i] *= double{weight[head * some.norm_stride + i]};
        }
        const size_t half = some.rotated / 2;
        for (size_t pair = 0; pair < half; ++pair) {
          const bool halves = some.pairs == RotaryPairs::kHalves;
          double& a = exact[halves ? pair : 2 * pair];
          double& b = exact[halves ? pair + half : 2 * pair + 1];
          const double cosine = table[token * 44 + pair];
          const double sine = table[token * 44 + half + pair];
          const double turned = a * cosine - b * sine;
          b = a * sine + b * cosine;
          a = turned;
        }
        for (size_t i = 0; i < kDimension; ++i) {
          const float found = out[token * (kRow + 5) + head * kDimension + i];
          ASSERT_NEAR(double{found}, exact[i], 16 * kFunction) << token << ", head " << head;
        }
      }
      EXPECT_EQ(out[token * (kRow + 5) + kRow], kLeftAlone);
    }
    EXPECT_EQ(out[9 * (kRow + 5)], kLeftAlone);
  }
}

TEST(GpuHeadCopies, have_each_heads_columns_of_both_operands) {
  const GpuTestBatch batch = batch_of(4);
  const std::vector<float> x = random_floats(size_t{4} * 70, 41);  // 3 heads of 20 columns
  const std::vector<float> y = random_floats(size_t{4} * 30, 42);  // one head for all, or 3 of 8
  for (const size_t head_stride : {size_t{0}, size_t{8}}) {
    Destination out(4, 3 * 20);
    gpu_copy_heads(nullptr,
                   {.walk = {.batch = batch.batch(), .grid_rows = 2},
                    .part_count = 2,
                    .parts = {{x.data(), 70, 20, 4, 12}, {y.data(), 30, head_stride, 0, 8}},
                    .columns = 60,
                    .output = out.values()});
    out.expect_alike();
    for (size_t row = 0; row < 4; ++row) {
      for (size_t column = 0; column < 60; ++column) {
        const size_t head = column / 20;
        const size_t i = column % 20;
        const float expected =
            i < 12 ? x[row * 70 + head * 20 + 4 + i] : y[row * 30 + head * head_stride + i - 12];
        ASSERT_EQ(out.at(row, column), expected) << row << ", column " << column;
      }
    }
  }
  Destination out(4, 36);
  gpu_copy_heads(nullptr, {.walk = {.batch = batch.batch()},
                           .part_count = 1,
                           .parts = {{x.data(), 70, 20, 8, 12}},
                           .columns = 36,
                           .output = out.values()});
  out.expect_alike();
  for (size_t column = 0; column < 36; ++column) {
    ASSERT_EQ(out.at(3, column), x[3 * 70 + column / 12 * 20 + 8 + column % 12]);
  }
}

// Rows of sequences that follow one another, of some of which several logits are asked for.
TEST(GpuRowMeans, are_of_all_rows_of_a_sequence) {
  constexpr size_t kWide = 70;
  const std::vector<uint32_t> lengths = {5, 1, 9};
  GpuTestBatch batch({.tokens = 15, .sequences = 3, .pages = 3, .logits = 15, .lengths = 3});
  std::vector<size_t> sequence_of_row;
  for (uint32_t sequence = 0; sequence < 3; ++sequence) {
    batch.writer().add_sequence(std::vector<uint32_t>{sequence});
    for (uint32_t position = 0; position < lengths[sequence]; ++position) {
      batch.writer().add_prompted(0, position, sequence);
      if (position != 0 && position + 1 != lengths[sequence]) continue;
      batch.writer().want_logits();
      sequence_of_row.push_back(sequence);
    }
  }
  batch.writer().end();
  const std::vector<float> x = random_floats(15 * (kWide + 3), 43);
  Destination out(sequence_of_row.size(), kWide);
  gpu_mean_rows(nullptr,
                {.walk = {.batch = batch.batch(), .which = GpuRowSet::kLogits, .grid_rows = 2},
                 .x = x.data(),
                 .x_stride = kWide + 3,
                 .columns = kWide,
                 .output = out.values()});
  out.expect_alike();
  const size_t begins[] = {0, 5, 6};
  for (size_t row = 0; row < sequence_of_row.size(); ++row) {
    const size_t sequence = sequence_of_row[row];
    for (size_t column = 0; column < kWide; ++column) {
      double sum = 0;
      for (size_t i = 0; i < lengths[sequence]; ++i) {
        sum += double{x[(begins[sequence] + i) * (kWide + 3) + column]};
      }
      ASSERT_EQ(out.at(row, column), static_cast<float>(sum / lengths[sequence]))
          << "row " << row << ", column " << column;
    }
  }
}

}  // namespace
}  // namespace lockstep
