#include "engine/kernels/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstddef>
#include <utility>
#include <vector>

#include "tests/engine/kernels/paged_sequence.h"

namespace lockstep {
namespace {

constexpr double kUnitRoundoff = 0x1p-24;

struct Angles {
  std::vector<float> cosines;
  std::vector<float> sines;
};

Angles angles_at(size_t position, size_t dimensions) {
  Angles angles;
  for (size_t i = 0; i < dimensions / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dimensions);
    const double angle = static_cast<double>(position) * std::pow(10000.0, exponent);
    angles.cosines.push_back(static_cast<float>(std::cos(angle)));
    angles.sines.push_back(static_cast<float>(std::sin(angle)));
  }
  return angles;
}

// The elements of pair `i`, as published: neighbours in the "llama" family's files, half a head
// apart in the "qwen" family's.
std::pair<size_t, size_t> pair_elements(RotaryPairs pairs, size_t dimensions, size_t i) {
  if (pairs == RotaryPairs::kInterleaved) return {2 * i, 2 * i + 1};
  return {i, dimensions / 2 + i};
}

TEST(Rotary, turns_each_pair_as_a_complex_product) {
  for (const RotaryPairs pairs : {RotaryPairs::kInterleaved, RotaryPairs::kHalves}) {
    for (const size_t dimensions : Sizes{2, 6, 8, 48, 64, 80, 128}) {
      for (const size_t position : Sizes{1, 77, 4095}) {
        const Angles angles = angles_at(position, dimensions);
        const std::vector<float> before = random_floats(dimensions, 5);
        std::vector<float> head = before;
        rotate(pairs, angles.cosines.data(), angles.sines.data(), dimensions, head.data());
        for (size_t i = 0; i < dimensions / 2; ++i) {
          const auto [first, second] = pair_elements(pairs, dimensions, i);
          const std::complex<double> turned =
              std::complex<double>(before[first], before[second]) *
              std::complex<double>(angles.cosines[i], angles.sines[i]);
          // A product and the sum are rounded: two unit roundoffs of the terms' sizes.
          const double size = std::fabs(before[first]) + std::fabs(before[second]);
          ASSERT_NEAR(head[first], turned.real(), 2.01 * kUnitRoundoff * size);
          ASSERT_NEAR(head[second], turned.imag(), 2.01 * kUnitRoundoff * size);
        }
      }
    }
  }
}

TEST(Rotary, leaves_position_zero_as_it_is) {
  for (const RotaryPairs pairs : {RotaryPairs::kInterleaved, RotaryPairs::kHalves}) {
    const Angles angles = angles_at(0, 64);
    const std::vector<float> before = random_floats(64, 6);
    std::vector<float> head = before;
    rotate(pairs, angles.cosines.data(), angles.sines.data(), 64, head.data());
    EXPECT_EQ(head, before);
  }
}

TEST(Rotary, leaves_what_is_beyond_its_dimensions) {
  for (const RotaryPairs pairs : {RotaryPairs::kInterleaved, RotaryPairs::kHalves}) {
    const Angles angles = angles_at(9, 32);
    const std::vector<float> before = random_floats(64, 7);
    std::vector<float> head = before;
    rotate(pairs, angles.cosines.data(), angles.sines.data(), 32, head.data());
    EXPECT_TRUE(std::equal(head.begin() + 32, head.end(), before.begin() + 32));
    EXPECT_NE(head[0], before[0]);
  }
}

// The score of a query and a key depends on how far apart they are, not on where they are.
TEST(Rotary, makes_products_depend_on_distance_alone) {
  constexpr size_t kDimensions = 64;
  for (const RotaryPairs pairs : {RotaryPairs::kInterleaved, RotaryPairs::kHalves}) {
    const auto product = [&](size_t query_position, size_t key_position) {
      std::vector<float> query = random_floats(kDimensions, 8);
      std::vector<float> key = random_floats(kDimensions, 9);
      const Angles at_query = angles_at(query_position, kDimensions);
      const Angles at_key = angles_at(key_position, kDimensions);
      rotate(pairs, at_query.cosines.data(), at_query.sines.data(), kDimensions, query.data());
      rotate(pairs, at_key.cosines.data(), at_key.sines.data(), kDimensions, key.data());
      double sum = 0.0;
      for (size_t i = 0; i < kDimensions; ++i) sum += static_cast<double>(query[i]) * key[i];
      return sum;
    };
    EXPECT_NEAR(product(10, 3), product(1010, 1003), 1e-4);
    EXPECT_GT(std::fabs(product(10, 3) - product(10, 4)), 1e-2);
  }
}

}  // namespace
}  // namespace lockstep
