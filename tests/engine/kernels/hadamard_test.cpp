#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "engine/kernels/attention.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/attention_reference.h"
#include "tests/engine/kernels/paged_sequence.h"

namespace lockstep {
namespace {

// Each `size` elements times the matrix, by its definition.
std::vector<double> turned(size_t size, const std::vector<float>& x) {
  std::vector<double> result;
  for (size_t begin = 0; begin < x.size(); begin += size) {
    for (size_t row = 0; row < size; ++row) {
      double sum = 0;
      for (size_t column = 0; column < size; ++column) {
        const bool is_odd = std::popcount(row & column) % 2 != 0;
        sum += is_odd ? -x[begin + column] : x[begin + column];
      }
      result.push_back(sum / std::sqrt(static_cast<double>(size)));
    }
  }
  return result;
}

TEST(Hadamard, turns_a_head_by_the_largest_power_of_two_that_divides_it) {
  EXPECT_EQ(hadamard_dimensions(64), 64U);
  EXPECT_EQ(hadamard_dimensions(80), 16U);
  EXPECT_EQ(hadamard_dimensions(96), 32U);
  EXPECT_EQ(hadamard_dimensions(576), 64U);
  EXPECT_EQ(hadamard_dimensions(33), 1U);
}

// Every element is what 1 + log2(size) roundings leave of it, and no bit depends on the table.
TEST(Hadamard, is_near_float64_and_has_the_same_bits_in_every_table) {
  for (const size_t dimensions : Sizes{1, 2, 4, 8, 16, 24, 32, 64, 96, 128, 192, 256, 512, 576}) {
    const size_t size = hadamard_dimensions(dimensions);
    const std::vector<float> x = random_floats(3 * dimensions, 5);
    const std::vector<double> expected = turned(size, x);
    double greatest = 0;
    for (const double value : expected) greatest = std::max(greatest, std::fabs(value));
    std::vector<uint32_t> bits;
    for (const KernelTable* table : tables_that_run_here()) {
      std::vector<float> result(x.size() + 1, 7.0F);
      std::copy(x.begin(), x.end(), result.begin());
      table->hadamard(size, x.size(), result.data());
      EXPECT_EQ(result.back(), 7.0F) << table->name << " " << dimensions;
      const double root = std::sqrt(static_cast<double>(size));
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(result[i], expected[i], 0x1p-24 * (12 + root) * greatest)
            << table->name << " " << dimensions << " " << i;
      }
      if (bits.empty()) bits = bits_of(result);
      EXPECT_EQ(bits_of(result), bits) << table->name << " " << dimensions;
    }
  }
}

TEST(Hadamard, is_its_own_inverse) {
  for (const KernelTable* table : tables_that_run_here()) {
    const std::vector<float> x = random_floats(384, 6);
    std::vector<float> twice = x;
    table->hadamard(128, twice.size(), twice.data());
    EXPECT_NE(twice, x);
    table->hadamard(128, twice.size(), twice.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(twice[i], x[i], 1e-5) << table->name;
  }
}

}  // namespace
}  // namespace lockstep
