// Arithmetic over a whole vocabulary's logits, written so that compilers turn it into vector code
// and every build gives the same bits: no library call, one fixed order of sums. They become a part
// of the loops that call them (row_loops.h), which are compiled for several widths of vectors.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace lockstep {

// exp(x) for x <= 0 with a relative error below 3e-7; 0 below -87, where floats end being normal;
// exactly 1 for 0. Reduction by powers of two, then a polynomial on [-ln 2 / 2, ln 2 / 2].
[[gnu::always_inline]] inline float exp_nonpositive(float x) {
  constexpr float kLeast = -87.0F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits, so that its product with n is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = x > kLeast ? x : kLeast;
  const float shifted = clamped * kLog2E + kRounder;
  const float n = shifted - kRounder;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  // The Taylor series: at |r| < 0.35 the first term left out is below 2e-8.
  float polynomial = 1.0F / 5040.0F;
  polynomial = polynomial * r + 1.0F / 720.0F;
  polynomial = polynomial * r + 1.0F / 120.0F;
  polynomial = polynomial * r + 1.0F / 24.0F;
  polynomial = polynomial * r + 1.0F / 6.0F;
  polynomial = polynomial * r + 0.5F;
  polynomial = polynomial * r + 1.0F;
  polynomial = polynomial * r + 1.0F;
  const auto exponent = static_cast<uint32_t>(static_cast<int32_t>(n) + 127);
  const float scale = std::bit_cast<float>(exponent << 23U);
  return x >= kLeast ? polynomial * scale : 0.0F;
}

inline constexpr size_t kSumLanes = 8;

// The sum in double: element i goes to lane i mod 8, then the lanes are added in order.
[[gnu::always_inline]] inline double sum_in_lanes(std::span<const float> values) {
  std::array<double, kSumLanes> lanes{};
  const size_t whole = values.size() / kSumLanes * kSumLanes;
  for (size_t index = 0; index < whole; index += kSumLanes) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) {
      lanes[lane] += static_cast<double>(values[index + lane]);
    }
  }
  for (size_t index = whole; index < values.size(); ++index) {
    lanes[index - whole] += static_cast<double>(values[index]);
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// The largest value; NaN counts as nothing, and of nothing it is -infinity.
[[gnu::always_inline]] inline float max_in_lanes(std::span<const float> values) {
  std::array<float, kSumLanes> lanes{};
  lanes.fill(-std::numeric_limits<float>::infinity());
  const size_t whole = values.size() / kSumLanes * kSumLanes;
  for (size_t index = 0; index < whole; index += kSumLanes) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) {
      const float value = values[index + lane];
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
  }
  for (size_t index = whole; index < values.size(); ++index) {
    const float value = values[index];
    lanes[index - whole] = value > lanes[index - whole] ? value : lanes[index - whole];
  }
  return *std::max_element(lanes.begin(), lanes.end());
}

}  // namespace lockstep
