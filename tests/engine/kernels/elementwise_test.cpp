#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/paged_sequence.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

constexpr double kUnitRoundoff = 0x1p-24;
constexpr size_t kCounts[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 288, 576, 1000, 4096};

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// Every input from here on, so that no row of data starts at a vector's border.
std::vector<float> unaligned(const std::vector<float>& values, size_t by) {
  std::vector<float> shifted(by, 7.0F);
  shifted.insert(shifted.end(), values.begin(), values.end());
  return shifted;
}

std::vector<float> rms_norm(const KernelTable& table, const std::vector<float>& x,
                            const std::vector<float>& weight, float epsilon) {
  std::vector<float> out(x.size());
  table.rms_norm(x.data(), weight.data(), x.size(), epsilon, out.data());
  return out;
}

std::vector<float> silu_multiply(const KernelTable& table, const std::vector<float>& gate,
                                 const std::vector<float>& up) {
  std::vector<float> out(gate.size());
  gate_kernel(table, ActivationFunction::kSilu)(gate.data(), up.data(), gate.size(), nullptr,
                                                out.data());
  return out;
}

// The contract's order of operations, written out lane by lane and independently of the lanes.
float rms_factor_in_order(const std::vector<float>& x, float epsilon) {
  float total = 0.0F;
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    const auto element = [&](size_t i) { return begin + i < x.size() ? x[begin + i] : 0.0F; };
    float lanes[16];
    for (size_t i = 0; i < 16; ++i) {
      lanes[i] = std::fma(element(i), element(i), 0.0F);
      lanes[i] = std::fma(element(i + 16), element(i + 16), lanes[i]);
    }
    for (const size_t apart : Sizes{8, 4, 2, 1}) {
      for (size_t i = 0; i < apart; ++i) lanes[i] += lanes[i + apart];
    }
    total += lanes[0];
  }
  return 1.0F / std::sqrt(total / static_cast<float>(x.size()) + epsilon);
}

TEST(RmsNorm, keeps_the_order_of_the_contract_in_every_table) {
  for (const size_t count : kCounts) {
    const std::vector<float> x = random_floats(count, 11);
    const std::vector<float> weight = random_floats(count, 12);
    std::vector<float> expected(count);
    const float factor = rms_factor_in_order(x, 1e-5F);
    for (size_t i = 0; i < count; ++i) expected[i] = x[i] * factor * weight[i];
    for (const KernelTable* table : tables_that_run_here()) {
      EXPECT_EQ(bits_of(rms_norm(*table, x, weight, 1e-5F)), bits_of(expected))
          << table->name << ", " << count << " elements";
    }
  }
}

TEST(RmsNorm, is_near_the_exact_norm) {
  for (const size_t count : kCounts) {
    const std::vector<float> x = random_floats(count, 21);
    const std::vector<float> weight = random_floats(count, 22);
    double sum = 0.0;
    for (const float value : x) sum += static_cast<double>(value) * value;
    const double factor = 1.0 / std::sqrt(sum / static_cast<double>(count) + 1e-6);
    // The sum: two roundings in a lane, four between lanes, one per chunk. Its error is halved by
    // the root; then division, epsilon (half each), root, reciprocal and two products.
    const double chunks = static_cast<double>((count + 31) / 32);
    const double bound = ((2 + 4 + chunks) / 2 + 5 + 1) * kUnitRoundoff;
    for (const KernelTable* table : tables_that_run_here()) {
      const std::vector<float> out = rms_norm(*table, x, weight, 1e-6F);
      for (size_t i = 0; i < count; ++i) {
        const double exact = x[i] * factor * weight[i];
        ASSERT_NEAR(out[i], exact, std::fabs(exact) * bound) << table->name << " element " << i;
      }
    }
  }
}

TEST(RmsNorm, may_be_unaligned_and_in_place) {
  for (const size_t count : kCounts) {
    const std::vector<float> x = random_floats(count, 31);
    const std::vector<float> weight = random_floats(count, 32);
    for (const KernelTable* table : tables_that_run_here()) {
      const std::vector<float> expected = rms_norm(*table, x, weight, 1e-5F);
      std::vector<float> data = unaligned(x, 1);
      data.push_back(9.0F);
      const std::vector<float> shifted_weight = unaligned(weight, 3);
      table->rms_norm(data.data() + 1, shifted_weight.data() + 3, count, 1e-5F, data.data() + 1);
      EXPECT_EQ(bits_of({data.begin() + 1, data.end() - 1}), bits_of(expected)) << table->name;
      EXPECT_EQ(data.front(), 7.0F) << table->name << " wrote before its output";
      EXPECT_EQ(data.back(), 9.0F) << table->name << " wrote beyond its output";
    }
  }
}

TEST(RmsNorm, of_zeros_is_zeros) {
  for (const KernelTable* table : tables_that_run_here()) {
    const std::vector<float> zeros(48);
    EXPECT_EQ(bits_of(rms_norm(*table, zeros, random_floats(48, 1), 1e-5F)).front() << 1U, 0U);
  }
}

TEST(RmsNorm, shows_a_nan) {
  for (const KernelTable* table : tables_that_run_here()) {
    std::vector<float> x = random_floats(50, 1);
    x[49] = std::numeric_limits<float>::quiet_NaN();
    for (const float value : rms_norm(*table, x, std::vector<float>(50, 1.0F), 1e-5F)) {
      EXPECT_TRUE(std::isnan(value)) << table->name;
    }
  }
}

TEST(SiluMultiply, is_near_the_exact_function) {
  std::vector<float> gate;
  for (float x = -80.0F; x <= 100.0F; x += 0.013F) gate.push_back(x);
  const std::vector<float> up = random_floats(gate.size(), 41);
  // The exponential within 2 ulp (4 unit roundoffs), of which the sum takes part; then sum,
  // quotient and product. One more for what is of second order.
  const double bound = (4 + 3 + 1) * kUnitRoundoff;
  for (const KernelTable* table : tables_that_run_here()) {
    const std::vector<float> out = silu_multiply(*table, gate, up);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double x = gate[i];
      const double exact = x / (1.0 + std::exp(-x)) * up[i];
      // Half a unit of the least subnormal number for each of the last two roundings.
      ASSERT_NEAR(out[i], exact, std::fabs(exact) * bound + 0x1p-148)
          << table->name << " gate " << x << " up " << up[i];
    }
  }
}

TEST(SiluMultiply, has_the_same_bits_in_every_table) {
  std::vector<float> gate = random_floats(100003, 51);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] *= static_cast<float>(i % 64);
  gate.insert(gate.end(), {0.0F, -0.0F, 1e-40F, -1e-40F, 88.4F, -88.4F, 1e30F, -1e30F, 3e38F,
                           -3e38F, std::numeric_limits<float>::infinity()});
  const std::vector<float> up = random_floats(gate.size(), 52);
  const auto expected = bits_of(silu_multiply(*all_kernel_tables().front(), gate, up));
  for (const KernelTable* table : tables_that_run_here()) {
    EXPECT_EQ(bits_of(silu_multiply(*table, gate, up)), expected) << table->name;
  }
}

TEST(SiluMultiply, vanishes_for_gates_far_below_zero) {
  for (const KernelTable* table : tables_that_run_here()) {
    for (const float gate : {-89.0F, -1000.0F, -3e38F}) {
      EXPECT_EQ(silu_multiply(*table, {gate}, {1.0F}).front(), 0.0F) << table->name << gate;
    }
  }
}

TEST(SiluMultiply, may_be_unaligned_and_in_place) {
  for (const size_t count : kCounts) {
    const std::vector<float> gate = random_floats(count, 61);
    const std::vector<float> up = random_floats(count, 62);
    for (const KernelTable* table : tables_that_run_here()) {
      const std::vector<float> expected = silu_multiply(*table, gate, up);
      std::vector<float> data = unaligned(gate, 1);
      data.push_back(9.0F);
      const std::vector<float> shifted_up = unaligned(up, 3);
      gate_kernel(*table, ActivationFunction::kSilu)(data.data() + 1, shifted_up.data() + 3, count,
                                                     nullptr, data.data() + 1);
      EXPECT_EQ(bits_of({data.begin() + 1, data.end() - 1}), bits_of(expected)) << table->name;
      EXPECT_EQ(data.front(), 7.0F) << table->name << " wrote before its output";
      EXPECT_EQ(data.back(), 9.0F) << table->name << " wrote beyond its output";
    }
  }
}

TEST(SiluMultiply, shows_a_nan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const KernelTable* table : tables_that_run_here()) {
    EXPECT_TRUE(std::isnan(silu_multiply(*table, {nan}, {1.0F}).front())) << table->name;
    EXPECT_TRUE(std::isnan(silu_multiply(*table, {1.0F}, {nan}).front())) << table->name;
  }
}

}  // namespace
}  // namespace lockstep
