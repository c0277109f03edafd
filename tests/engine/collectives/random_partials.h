// Partial sums for ranks to add.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace lockstep {

// Values of many magnitudes, so that another order of adding shows.
inline std::vector<float> random_values(size_t count, uint32_t seed) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> mantissa(-1.0F, 1.0F);
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(mantissa(random), exponent(random));
  return values;
}

}  // namespace lockstep
