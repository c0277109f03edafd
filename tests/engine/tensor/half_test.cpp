// Half and bfloat16, over all of their 65,536 values and the borders between them. The expected
// values follow from the definition of the formats (sign, exponent, fraction) by std::ldexp.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/tensor/format.h"

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The value of the bits in a format with these widths; NaN and infinity in the last exponent.
double defined_value(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int last_exponent = (1 << exponent_bits) - 1;
  const auto exponent = static_cast<int>((bits >> fraction_bits) & ((1u << exponent_bits) - 1));
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const double sign = (bits >> (exponent_bits + fraction_bits)) != 0 ? -1 : 1;
  if (exponent == last_exponent) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * kInfinity;
  }
  const double leading = exponent == 0 ? 0 : 1;
  const double mantissa = leading + std::ldexp(fraction, -fraction_bits);
  return sign * std::ldexp(mantissa, std::max(exponent, 1) - bias);
}

struct Narrow {
  const char* name;
  int exponent_bits;
  int fraction_bits;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
  uint16_t infinity;
};

const Narrow kNarrowFormats[] = {
    {"half", 5, 10, half_to_float, float_to_half, 0x7c00},
    {"bf16", 8, 7, bf16_to_float, float_to_bf16, 0x7f80},
};

TEST(Half, every_value_widens_to_what_the_format_defines) {
  for (const Narrow& format : kNarrowFormats) {
    for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
      const double expected = defined_value(bits, format.exponent_bits, format.fraction_bits);
      const float value = format.widen(static_cast<uint16_t>(bits));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << format.name << " " << bits;
      } else {
        ASSERT_EQ(static_cast<double>(value), expected) << format.name << " " << bits;
      }
      ASSERT_EQ(std::signbit(value), bits >= 0x8000) << format.name << " " << bits;
    }
  }
}

TEST(Half, every_value_survives_a_round_trip_and_nan_stays_nan) {
  for (const Narrow& format : kNarrowFormats) {
    for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
      const uint16_t back = format.narrow(format.widen(static_cast<uint16_t>(bits)));
      if ((bits & 0x7fff) > format.infinity) {
        ASSERT_GT(back & 0x7fff, format.infinity) << format.name << " " << bits;
        ASSERT_EQ(back & 0x8000, static_cast<int>(bits & 0x8000)) << format.name << " " << bits;
      } else {
        ASSERT_EQ(back, bits) << format.name;
      }
    }
  }
}

TEST(Half, between_two_values_the_nearer_wins_and_a_tie_goes_to_the_even_one) {
  for (const Narrow& format : kNarrowFormats) {
    // The step beyond the largest finite value is as wide as the one before it.
    for (uint16_t low = 0; low < format.infinity; ++low) {
      const auto high = static_cast<uint16_t>(low + 1);
      const double below = defined_value(low, format.exponent_bits, format.fraction_bits);
      const double above =
          high == format.infinity
              ? 2 * below - defined_value(low - 1u, format.exponent_bits, format.fraction_bits)
              : defined_value(high, format.exponent_bits, format.fraction_bits);
      const auto middle = static_cast<float>((below + above) / 2);
      ASSERT_EQ(static_cast<double>(middle), (below + above) / 2) << "needs no rounding";
      const uint16_t even = (low & 1) == 0 ? low : high;
      for (const int sign : {0, 0x8000}) {
        const float direction = sign == 0 ? 1.0f : -1.0f;
        SCOPED_TRACE(format.name);
        ASSERT_EQ(format.narrow(direction * middle), sign | even) << low;
        ASSERT_EQ(format.narrow(direction * std::nextafter(middle, 0.0f)), sign | low) << low;
        ASSERT_EQ(format.narrow(direction * std::nextafter(middle, kInfinity)), sign | high) << low;
      }
    }
  }
}

TEST(Half, what_is_too_large_becomes_infinity) {
  for (const Narrow& format : kNarrowFormats) {
    EXPECT_EQ(format.narrow(kInfinity), format.infinity) << format.name;
    EXPECT_EQ(format.narrow(-kInfinity), 0x8000 | format.infinity) << format.name;
    EXPECT_EQ(format.narrow(std::numeric_limits<float>::max()), format.infinity) << format.name;
  }
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
}

TEST(Half, a_nan_whose_payload_does_not_fit_stays_nan) {
  for (const Narrow& format : kNarrowFormats) {
    for (const uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fbfffffu, 0xffffffffu}) {
      const uint16_t narrowed = format.narrow(std::bit_cast<float>(bits));
      EXPECT_GT(narrowed & 0x7fff, format.infinity) << format.name << " " << bits;
    }
  }
}

}  // namespace
}  // namespace lockstep
