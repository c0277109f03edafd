// The definition of the exponential, over the scalar lanes. That the other lanes give the same bits
// is tested through activations and attend.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "engine/kernels/cpu/lanes_scalar.h"

// Written over the lanes.
#include "engine/kernels/cpu/exponential.inl.h"

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float exponential_of(float x) {
  return exponential(broadcast(x)).v[0];
}

// |exponential(x) - e^x| in units in the last place of e^x.
double error_in_ulps(float x) {
  const double exact = std::exp(static_cast<double>(x));
  const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
  return std::fabs(exponential_of(x) - exact) / ulp;
}

TEST(Exponential, is_within_two_units_in_the_last_place) {
  double worst = 0.0;
  float worst_at = 0.0F;
  const auto check = [&](float x) {
    const double error = error_in_ulps(x);
    if (error > worst) {
      worst = error;
      worst_at = x;
    }
  };
  // Every 2,003rd float of the range: all exponents, from the least numbers on.
  const auto last_negative = std::bit_cast<uint32_t>(87.3365F);
  const auto last_positive = std::bit_cast<uint32_t>(88.375F);
  for (uint32_t bits = 0; bits <= last_positive; bits += 2003) {
    check(std::bit_cast<float>(bits));
    if (bits <= last_negative) check(-std::bit_cast<float>(bits));
  }
  // An even grid, where most of the range is.
  for (float x = -87.3365F; x <= 88.375F; x += 0.0005F) check(x);
  check(-87.3365F);
  check(88.375F);
  EXPECT_LE(worst, 2.0) << "at " << worst_at;
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(Exponential, of_zero_is_exactly_one) {
  EXPECT_EQ(exponential_of(0.0F), 1.0F);
  EXPECT_EQ(exponential_of(-0.0F), 1.0F);
}

TEST(Exponential, is_zero_where_the_result_would_not_be_normal) {
  for (const float x : {-87.34F, -88.0F, -100.0F, -104.0F, -1e30F, -kInfinity}) {
    EXPECT_EQ(std::bit_cast<uint32_t>(exponential_of(x)), 0U) << x;
  }
}

TEST(Exponential, is_infinity_above_its_range) {
  for (const float x : {88.376F, 88.73F, 1000.0F, 3e38F, kInfinity}) {
    EXPECT_EQ(exponential_of(x), kInfinity) << x;
  }
}

TEST(Exponential, of_nan_is_nan) {
  for (const uint32_t bits : {0x7FC00000U, 0xFFC00000U, 0x7F800001U, 0xFFFFFFFFU}) {
    EXPECT_TRUE(std::isnan(exponential_of(std::bit_cast<float>(bits)))) << bits;
  }
}

// Every 2,003rd float of both signs whose result is a normal number, and an even grid.
TEST(Softplus, is_within_four_units_in_the_last_place) {
  double worst = 0.0;
  float worst_at = 0.0F;
  const auto check = [&](float x) {
    const double exact = x > 40 ? x : std::log1p(std::exp(static_cast<double>(x)));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    const double error = std::fabs(softplus(broadcast(x)).v[0] - exact) / ulp;
    if (error > worst) {
      worst = error;
      worst_at = x;
    }
  };
  const auto last_negative = std::bit_cast<uint32_t>(87.3F);
  const auto last_positive = std::bit_cast<uint32_t>(1e30F);
  for (uint32_t bits = 0; bits <= last_positive; bits += 2003) {
    check(std::bit_cast<float>(bits));
    if (bits <= last_negative) check(-std::bit_cast<float>(bits));
  }
  for (float x = -87.3F; x <= 40; x += 0.0005F) check(x);
  EXPECT_LE(worst, 4.0) << "at " << worst_at;
}

TEST(Softplus, of_what_is_no_number_or_infinite_is_as_log_and_exp_have_it) {
  EXPECT_TRUE(std::isnan(softplus(broadcast(std::bit_cast<float>(0x7FC00000U))).v[0]));
  EXPECT_EQ(softplus(broadcast(kInfinity)).v[0], kInfinity);
  EXPECT_EQ(softplus(broadcast(-kInfinity)).v[0], 0.0F);
}

TEST(Exponential, treats_each_lane_alone) {
  F32x16 x;
  for (size_t lane = 0; lane < 16; ++lane) {
    x.v[lane] = lane % 3 == 0 ? kInfinity : lane % 3 == 1 ? -kInfinity : static_cast<float>(lane);
  }
  const F32x16 result = exponential(x);
  for (size_t lane = 0; lane < 16; ++lane) EXPECT_EQ(result.v[lane], exponential_of(x.v[lane]));
}

}  // namespace
}  // namespace lockstep
