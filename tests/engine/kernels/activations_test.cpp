// The activations, the soft cap and the sums of norms: every row of the table has the bits of the
// scalar row, and these are near what float64 computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "tests/engine/kernels/exact_activation.h"
#include "tests/engine/kernels/paged_sequence.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kUnit = 0x1p-24;  // half a unit in the last place of 1
constexpr size_t kElementCounts[] = {1, 15, 16, 17, 31, 32, 33, 48, 288, 1000};

std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<uint32_t>(value));
  return result;
}

// The argument of the exponential: its roundings move the result by as many of its units.
double argument(const Activation& activation, double x) {
  switch (activation.function) {
    case ActivationFunction::kSilu:
    case ActivationFunction::kSigmoid:
      return x;
    case ActivationFunction::kGeluTanh:
      return 2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    case ActivationFunction::kGeluQuick:
      return 1.702 * x;
    case ActivationFunction::kClippedSwiglu:
      return double{activation.parameters[0]} * x;
    default:
      return 0;
  }
}

// Small and large, of both signs, on a grid and in between.
std::vector<float> arguments() {
  std::vector<float> values = {0.0F, -0.0F, 1e-30F, -1e-30F, 1e-4F, -1e-4F, 14.0F, -14.0F};
  for (int step = -2000; step <= 2000; ++step)
    values.push_back(0.00637F * static_cast<float>(step));
  return values;
}

// The terms' sizes where a result may be much smaller than these are.
double terms(const Activation& activation, double x) {
  if (activation.function != ActivationFunction::kXielu)
    return std::abs(exact_activation(activation, x));
  const auto [a, b, c, d] = exact_parameters(activation);
  // Far from 0, e^x - 1 is rounded, and - x with it.
  const double least = std::min(x, d);
  const double power = least > -0.3 ? std::abs(std::expm1(least) - x) : 1 - x;
  return x > 0 ? a * x * x + c * x : std::abs(b) * power + std::abs(c * x);
}

std::vector<float> activate(const KernelTable& table, const Activation& activation,
                            const std::vector<float>& x) {
  std::vector<float> out(x.size());
  activation_kernel(table, activation.function)(x.data(), x.size(), activation.parameters.data(),
                                                out.data());
  return out;
}

std::vector<float> gate(const KernelTable& table, const Activation& activation,
                        const std::vector<float>& x, const std::vector<float>& y) {
  std::vector<float> out(x.size());
  gate_kernel(table, activation.function)(x.data(), y.data(), x.size(),
                                          activation.parameters.data(), out.data());
  return out;
}

// Those with parameters once as models have them, and once with others.
std::vector<Activation> all_activations() {
  std::vector<Activation> all = {
      {ActivationFunction::kXielu, {0.8F, 1.3F, 0.5F, -1e-6F}},
      {ActivationFunction::kXielu, {0.0F, 2.0F, 0.25F, -0.5F}},
      {ActivationFunction::kClippedSwiglu, {1.702F, 7.0F}},
      {ActivationFunction::kClippedSwiglu, {0.5F, 1.25F}},
  };
  for (size_t index = 0; index < static_cast<size_t>(ActivationFunction::kXielu); ++index) {
    all.emplace_back(static_cast<ActivationFunction>(index));
  }
  return all;
}

// Four roundings, the exponential's two units, and those of its argument; of GELU's share the
// polynomial's roundings, eight units at most.
TEST(Activations, are_near_those_in_float64) {
  const std::vector<float> x = arguments();
  for (const Activation& activation : all_activations()) {
    const std::vector<float> out = activate(scalar_kernel_table(), activation, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const double value = exact_activation(activation, x[i]);
      const double units = 16 + 4 * std::abs(argument(activation, x[i]));
      const double least = std::numeric_limits<float>::min();
      EXPECT_LE(std::abs(out[i] - value), terms(activation, x[i]) * units * kUnit + 20 * least)
          << kActivationNames[static_cast<size_t>(activation.function)] << " of " << x[i];
    }
  }
}

TEST(Activations, have_the_bits_of_the_scalar_row_in_every_table) {
  for (const Activation& activation : all_activations()) {
    for (const size_t count : kElementCounts) {
      std::vector<float> x = random_floats(count, 5);
      for (float& value : x) value *= 4;
      if (count > 16) x[3] = kInfinity;
      if (count > 16) x[7] = -300.0F;
      std::vector<float> y = random_floats(count, 6);
      for (float& value : y) value *= 4;
      const KernelTable& scalar = scalar_kernel_table();
      const auto expected = bits(activate(scalar, activation, x));
      const auto expected_gate = bits(gate(scalar, activation, x, y));
      for (const KernelTable* table : tables_that_run_here()) {
        EXPECT_EQ(bits(activate(*table, activation, x)), expected) << table->name;
        EXPECT_EQ(bits(gate(*table, activation, x, y)), expected_gate) << table->name;
        std::vector<float> in_place = x;
        activation_kernel(*table, activation.function)(
            in_place.data(), count, activation.parameters.data(), in_place.data());
        EXPECT_EQ(bits(in_place), expected) << table->name << " in place";
      }
    }
  }
}

// A gated value stays as it is, but for clipped SwiGLU.
float gated(const Activation& activation, float y) {
  if (activation.function != ActivationFunction::kClippedSwiglu) return y;
  const float limit = activation.parameters[1];
  return std::clamp(y, -limit, limit) + 1.0F;
}

TEST(Activations, of_a_gate_are_multiplied_once) {
  const std::vector<float> x = random_floats(100, 7);
  std::vector<float> y = random_floats(100, 8);
  for (float& value : y) value *= 4;
  for (const KernelTable* table : tables_that_run_here()) {
    for (const Activation& activation : all_activations()) {
      std::vector<float> expected = activate(*table, activation, x);
      for (size_t i = 0; i < x.size(); ++i) expected[i] *= gated(activation, y[i]);
      EXPECT_EQ(bits(gate(*table, activation, x, y)), bits(expected)) << table->name;
    }
  }
}

TEST(Activations, show_a_nan) {
  const std::vector<float> nan = {std::numeric_limits<float>::quiet_NaN()};
  for (const KernelTable* table : tables_that_run_here()) {
    for (const Activation& activation : all_activations()) {
      EXPECT_TRUE(std::isnan(activate(*table, activation, nan)[0])) << table->name;
      EXPECT_TRUE(std::isnan(gate(*table, activation, nan, {1.0F})[0])) << table->name;
      EXPECT_TRUE(std::isnan(gate(*table, activation, {1.0F}, nan)[0])) << table->name;
    }
  }
}

TEST(SoftCap, is_near_that_in_float64_and_the_same_in_every_table) {
  std::vector<float> x = arguments();
  for (const float cap : {1.0F, 3.0F, 50.0F}) {
    std::vector<float> expected(x.size());
    scalar_kernel_table().soft_cap(x.data(), x.size(), cap, expected.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double value = cap * std::tanh(double{x[i]} / cap);
      EXPECT_LE(std::abs(expected[i] - value), std::abs(value) * 16 * kUnit) << x[i];
    }
    for (const KernelTable* table : tables_that_run_here()) {
      std::vector<float> out(x.size());
      table->soft_cap(x.data(), x.size(), cap, out.data());
      EXPECT_EQ(bits(out), bits(expected)) << table->name;
    }
  }
  const std::vector<float> infinite = {kInfinity, -kInfinity};
  std::vector<float> out(2);
  scalar_kernel_table().soft_cap(infinite.data(), 2, 30.0F, out.data());
  EXPECT_EQ(out, (std::vector<float>{30.0F, -30.0F}));
}

TEST(NormSums, are_those_of_float64_and_the_same_in_every_table) {
  for (const size_t count : kElementCounts) {
    std::vector<float> x = random_floats(count, 9);
    for (float& value : x) value += 3.0F;
    const size_t chunks = (count + 31) / 32;
    std::vector<float> sums(chunks);
    std::vector<float> apart(chunks);
    std::vector<float> squares(chunks);
    scalar_kernel_table().sum_moments(x.data(), count, sums.data(), apart.data());
    scalar_kernel_table().sum_squares(x.data(), count, squares.data());
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      const size_t begin = chunk * 32;
      const size_t end = std::min(count, begin + 32);
      double sum = 0;
      double square = 0;
      double size = 0;
      for (size_t i = begin; i < end; ++i) sum += x[i];
      for (size_t i = begin; i < end; ++i) square += double{x[i]} * x[i];
      for (size_t i = begin; i < end; ++i) size += std::abs(x[i]);
      const double mean = sum / static_cast<double>(end - begin);
      double distance = 0;
      for (size_t i = begin; i < end; ++i) distance += (x[i] - mean) * (x[i] - mean);
      EXPECT_LE(std::abs(sums[chunk] - sum), 6 * kUnit * size);
      EXPECT_LE(std::abs(squares[chunk] - square), 8 * kUnit * square);
      // The mean's error adds its square; each distance is rounded by a unit of its element.
      EXPECT_LE(std::abs(apart[chunk] - distance),
                8 * kUnit * distance + 16 * kUnit * size * std::sqrt(distance));
    }
    for (const KernelTable* table : tables_that_run_here()) {
      std::vector<float> other_sums(chunks);
      std::vector<float> other(chunks);
      table->sum_moments(x.data(), count, other_sums.data(), other.data());
      EXPECT_EQ(bits(other_sums), bits(sums)) << table->name;
      EXPECT_EQ(bits(other), bits(apart)) << table->name;
      table->sum_squares(x.data(), count, other.data());
      EXPECT_EQ(bits(other), bits(squares)) << table->name;
    }
  }
}

}  // namespace
}  // namespace lockstep
