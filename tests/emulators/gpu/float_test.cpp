#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/emulators/gpu/small_kernels.h"

namespace lockstep::ptx {
namespace {

using Values = std::vector<uint64_t>;

constexpr size_t kCount = 512;
constexpr uint64_t kNan32 = 0x7fffffff;  // the only one that a GPU gives
const float kInfinity = std::numeric_limits<float>::infinity();

uint64_t bits(float value) {
  return std::bit_cast<uint32_t>(value);
}
uint64_t bits(double value) {
  return std::bit_cast<uint64_t>(value);
}
float as_float(uint64_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value));
}
// A float's bits, with the GPU's bits for what is no number.
uint64_t gpu_bits(float value) {
  return value == value ? bits(value) : kNan32;
}

// Special values, random ones of any exponent, and random ones of at most 128, in random order.
Values floats(uint64_t seed) {
  std::mt19937_64 random(seed);
  Values values;
  for (const float value : {0.f, 1.f, 0.5f, 1.5f, 2.5f, 0x1p-126f, 0x1p-149f, 0x1.fffffep127f,
                            kInfinity, std::nanf(""), 0x1p31f, 0x1.fffffep30f, 0x1p63f}) {
    values.insert(values.end(), {bits(value), bits(-value)});
  }
  while (values.size() < kCount / 2) values.push_back(random() & 0xffffffff);
  while (values.size() < kCount) {
    values.push_back(bits(static_cast<float>(static_cast<int32_t>(random())) * 0x1p-24f));
  }
  std::shuffle(values.begin(), values.end(), random);
  return values;
}

template <typename Function>
void expect_gives(const std::string& instruction, const std::vector<uint32_t>& widths,
                  const std::vector<Values>& operands, Function expected) {
  const Values results = evaluate(instruction, widths, operands);
  for (size_t t = 0; t < results.size(); ++t) {
    const auto operand = [&](size_t i) { return i < operands.size() ? operands[i][t] : 0; };
    ASSERT_EQ(results[t], expected(operand(0), operand(1), operand(2)))
        << instruction << " of " << std::hex << operand(0) << ", " << operand(1) << ", "
        << operand(2);
  }
}

// Integers times a power of two: what sums and products of floats are exactly.
struct Exact {
  __int128 value = 0;
  int exponent = 0;

  static Exact of(float number) {
    int exponent = 0;
    const float fraction = std::frexp(number, &exponent);
    return {static_cast<__int128>(std::ldexp(fraction, 24)), exponent - 24};
  }
  static Exact product_and_sum(float a, float b, float c) {
    const Exact x = of(a);
    const Exact y = of(b);
    const Exact z = of(c);
    const int exponent = std::min(x.exponent + y.exponent, z.exponent);
    return {(x.value * y.value << (x.exponent + y.exponent - exponent)) +
                (z.value << (z.exponent - exponent)),
            exponent};
  }
  // With so many bits: to the nearest, ties to even; or to what is not more.
  double rounded(uint32_t precision, bool down) const {
    const bool negative = value < 0;
    unsigned __int128 size = static_cast<unsigned __int128>(negative ? -value : value);
    int shift = 0;
    while ((size >> shift) >= (static_cast<unsigned __int128>(1) << precision)) ++shift;
    const unsigned __int128 rest = size & ((static_cast<unsigned __int128>(1) << shift) - 1);
    const unsigned __int128 half =
        shift == 0 ? 0 : static_cast<unsigned __int128>(1) << (shift - 1);
    size >>= shift;
    const bool up = down ? negative && rest != 0
                         : rest > half || (shift != 0 && rest == half && (size & 1) != 0);
    const double whole = static_cast<double>(static_cast<uint64_t>(size + (up ? 1 : 0)));
    return std::ldexp(negative ? -whole : whole, exponent + shift);
  }
};

TEST(PtxFloats, arithmetic_of_32_bits_rounds_to_the_nearest) {
  const std::vector<Values> two{floats(1), floats(2)};
  using U = uint64_t;
  for (const std::string rounding : {".", ".rn."}) {
    expect_gives("add" + rounding + "f32", {4, 4, 4}, two,
                 [](U a, U b, U) { return gpu_bits(as_float(a) + as_float(b)); });
    expect_gives("sub" + rounding + "f32", {4, 4, 4}, two,
                 [](U a, U b, U) { return gpu_bits(as_float(a) - as_float(b)); });
    expect_gives("mul" + rounding + "f32", {4, 4, 4}, two,
                 [](U a, U b, U) { return gpu_bits(as_float(a) * as_float(b)); });
  }
  expect_gives("div.rn.f32", {4, 4, 4}, two,
               [](U a, U b, U) { return gpu_bits(as_float(a) / as_float(b)); });
  expect_gives("sqrt.rn.f32", {4, 4}, {floats(3)},
               [](U a, U, U) { return gpu_bits(std::sqrt(as_float(a))); });
  expect_gives("rcp.rn.f32", {4, 4}, {floats(3)},
               [](U a, U, U) { return gpu_bits(1 / as_float(a)); });
  expect_gives("neg.f32", {4, 4}, {floats(3)}, [](U a, U, U) { return a ^ 0x80000000; });
  expect_gives("abs.f32", {4, 4}, {floats(3)}, [](U a, U, U) { return a & 0x7fffffff; });
}

TEST(PtxFloats, products_and_sums_round_once_to_the_nearest_or_down) {
  std::mt19937_64 random(7);
  std::vector<Values> operands(3);
  for (Values& values : operands) {
    while (values.size() < 1024) {
      // Within 2^10 of 1, so that results are exact in 128 bits; often with few bits, so that they
      // are halfway between two floats.
      const int exponent = static_cast<int>(random() % 20) - 10;
      const uint64_t kept = ~uint64_t{0} << (random() % 24);
      const auto whole = static_cast<float>((random() & 0xffffff & kept) | 0x800000);
      values.push_back(bits(std::ldexp(random() % 2 == 0 ? whole : -whole, exponent - 23)));
    }
  }
  const auto rounded = [](bool down) {
    return [down](uint64_t a, uint64_t b, uint64_t c) {
      const Exact exact = Exact::product_and_sum(as_float(a), as_float(b), as_float(c));
      if (exact.value == 0) return bits(down ? -0.f : 0.f);
      return bits(static_cast<float>(exact.rounded(24, down)));
    };
  };
  expect_gives("fma.rn.f32", {4, 4, 4, 4}, operands, rounded(false));
  expect_gives("fma.rm.f32", {4, 4, 4, 4}, operands, rounded(true));
  EXPECT_EQ(evaluate("fma.rm.f32", {4, 4, 4, 4}, {{bits(1.f)}, {bits(1.f)}, {bits(-1.f)}})[0],
            bits(-0.f));
  EXPECT_EQ(evaluate("fma.rm.f32", {4, 4, 4, 4}, {{bits(kInfinity)}, {bits(0.f)}, {0}})[0], kNan32);
}

TEST(PtxFloats, pairs_of_bf16_round_once) {
  std::mt19937_64 random(8);
  const auto half = [&] {
    const int exponent = static_cast<int>(random() % 30) - 15;
    const auto whole = static_cast<float>((random() & 0x7f) | 0x80);
    return bits(std::ldexp(random() % 2 == 0 ? whole : -whole, exponent - 7)) >> 16;
  };
  std::vector<Values> operands(3);
  for (Values& values : operands) {
    while (values.size() < 1024) values.push_back(half() << 16 | half());
  }
  // 17/16 of 17/16 and of 19/16 lie halfway between two bf16; the third decides, however small.
  for (size_t i = 0; i < 2; ++i) {
    operands[0][i] = 0x3f883f88;
    operands[1][i] = i == 0 ? 0x3f883f88 : 0x3f983f98;
    operands[2][i] = 0x2f80af80;
  }
  const auto one = [](uint64_t a, uint64_t b, uint64_t c) {
    const Exact exact =
        Exact::product_and_sum(as_float(a << 16), as_float(b << 16), as_float(c << 16));
    return bits(static_cast<float>(exact.rounded(8, false))) >> 16;
  };
  expect_gives("fma.rn.bf16x2", {4, 4, 4, 4}, operands, [&](uint64_t a, uint64_t b, uint64_t c) {
    return one(a >> 16, b >> 16, c >> 16) << 16 | one(a & 0xffff, b & 0xffff, c & 0xffff);
  });
  // Too large, no number, subnormal.
  EXPECT_EQ(evaluate("fma.rn.bf16x2", {4, 4, 4, 4},
                     {{0x7f7f7f80, 0x00013f80}, {0x7f7f0000, 0x3f803f80}, {0, 0x00010000}}),
            (Values{0x7f807fff, 0x00023f80}));
}

TEST(PtxFloats, the_larger_and_the_smaller_pass_over_what_is_no_number) {
  const Values a{bits(1.f), bits(-0.f), bits(0.f), kNan32, bits(2.f), 0x7f800001, bits(-3.f)};
  const Values b{bits(2.f), bits(0.f), bits(-0.f), bits(2.f), 0xffc00000, kNan32, bits(-4.f)};
  EXPECT_EQ(evaluate("max.f32", {4, 4, 4}, {a, b}),
            (Values{bits(2.f), bits(0.f), bits(0.f), bits(2.f), bits(2.f), kNan32, bits(-3.f)}));
  EXPECT_EQ(evaluate("min.f32", {4, 4, 4}, {a, b}),
            (Values{bits(1.f), bits(-0.f), bits(-0.f), bits(2.f), bits(2.f), kNan32, bits(-4.f)}));
}

TEST(PtxFloats, comparisons_with_what_is_no_number_are_false_or_unordered) {
  const Values a{bits(1.f), bits(1.f), bits(2.f), kNan32, bits(0.f)};
  const Values b{bits(2.f), bits(1.f), bits(1.f), bits(1.f), bits(-0.f)};
  const auto test = [&](const char* name) {
    const std::vector<uint32_t> widths{1, 4, 4};
    return evaluate(std::string("setp.") + name + ".f32", widths, {a, b});
  };
  EXPECT_EQ(test("lt"), (Values{1, 0, 0, 0, 0}));
  EXPECT_EQ(test("le"), (Values{1, 1, 0, 0, 1}));
  EXPECT_EQ(test("gt"), (Values{0, 0, 1, 0, 0}));
  EXPECT_EQ(test("ge"), (Values{0, 1, 1, 0, 1}));
  EXPECT_EQ(test("eq"), (Values{0, 1, 0, 0, 1}));
  EXPECT_EQ(test("ne"), (Values{1, 0, 1, 0, 0}));
  EXPECT_EQ(test("ltu"), (Values{1, 0, 0, 1, 0}));
  EXPECT_EQ(test("leu"), (Values{1, 1, 0, 1, 1}));
  EXPECT_EQ(test("gtu"), (Values{0, 0, 1, 1, 0}));
  EXPECT_EQ(test("geu"), (Values{0, 1, 1, 1, 1}));
  EXPECT_EQ(test("equ"), (Values{0, 1, 0, 1, 1}));
  EXPECT_EQ(test("neu"), (Values{1, 0, 1, 1, 0}));
  EXPECT_EQ(test("num"), (Values{1, 1, 1, 0, 1}));
  EXPECT_EQ(test("nan"), (Values{0, 0, 0, 1, 0}));
}

TEST(PtxFloats, powers_of_two_are_near_and_flush_subnormals) {
  Values values;
  for (int i = 0; i < 1024; ++i) values.push_back(bits(static_cast<float>(i - 512) * 0.246f));
  const Values results = evaluate("ex2.approx.ftz.f32", {4, 4}, {values});
  for (size_t i = 0; i < values.size(); ++i) {
    const double exact = std::exp2(static_cast<double>(as_float(values[i])));
    ASSERT_NEAR(as_float(results[i]) / exact, 1, 0x1p-22) << as_float(values[i]);
  }
  EXPECT_EQ(evaluate("ex2.approx.ftz.f32", {4, 4},
                     {{bits(0.f), bits(-126.f), bits(-126.5f), bits(-1000.f), bits(128.f),
                       bits(1000.f), bits(-kInfinity), kNan32, bits(10.f)}}),
            (Values{bits(1.f), bits(0x1p-126f), 0, 0, bits(kInfinity), bits(kInfinity), 0, kNan32,
                    bits(1024.f)}));
}

TEST(PtxFloats, powers_of_two_may_be_subnormals) {
  EXPECT_EQ(
      evaluate("ex2.approx.f32", {4, 4},
               {{bits(-126.f), bits(-130.f), bits(-149.f), bits(-151.f), bits(-kInfinity), kNan32,
                 bits(10.f)}}),
      (Values{bits(0x1p-126f), bits(0x1p-130f), bits(0x1p-149f), 0, 0, kNan32, bits(1024.f)}));
}

TEST(PtxFloats, reciprocals_are_near_and_flush_subnormals) {
  const Values values = floats(9);
  const Values results = evaluate("rcp.approx.ftz.f32", {4, 4}, {values});
  for (size_t i = 0; i < values.size(); ++i) {
    const float x = as_float(values[i]);
    const float exact = 1 / x;
    if (std::isnormal(x) && std::isnormal(exact)) {
      ASSERT_NEAR(as_float(results[i]) / exact, 1, 0x1p-22) << x;
    } else if (!std::isnan(x)) {
      ASSERT_EQ(results[i],
                bits(std::copysign(std::isinf(x) || std::isnormal(x) ? 0.f : kInfinity, x)))
          << x;
    }
  }
  const Values doubles =
      evaluate("rcp.approx.ftz.f64", {8, 8}, {{bits(3.0), bits(-0.1), bits(0.0), bits(-1e-310)}});
  EXPECT_NEAR(std::bit_cast<double>(doubles[0]), 1 / 3.0, 0x1p-20);
  EXPECT_NEAR(std::bit_cast<double>(doubles[1]), -10, 0x1p-16);
  EXPECT_EQ(doubles[0] & 0xffffffff, 0U);
  EXPECT_EQ(doubles[2], 0x7ff0000000000000U);
  EXPECT_EQ(doubles[3], 0xfff0000000000000U);
}

TEST(PtxFloats, signs_are_copied_and_sums_rounded_towards_zero) {
  EXPECT_EQ(evaluate("copysign.f32", {4, 4, 4},
                     {{bits(-0.f), bits(2.f), 0xffc00000}, {bits(3.f), bits(-4.f), bits(5.f)}}),
            (Values{bits(-3.f), bits(4.f), bits(-5.f)}));
  EXPECT_EQ(evaluate("add.rz.f32", {4, 4, 4},
                     {{bits(1.f), bits(-1.f), bits(kInfinity)},
                      {bits(0x1.8p-24f), bits(-0x1.8p-24f), bits(-kInfinity)}}),
            (Values{bits(1.f), bits(-1.f), kNan32}));
}

TEST(PtxFloats, to_integers_out_of_range_gives_the_nearest_there_is) {
  const Values values{bits(2.5f),     bits(3.5f),      bits(-2.5f), bits(2.99f),
                      bits(-2.99f),   bits(0x1p31f),   kNan32,      bits(-0x1p31f),
                      bits(-0x1p33f), bits(kInfinity), bits(-0.5f), bits(0x1.fffffep30f)};
  constexpr uint64_t kMost = 0x7fffffff;
  constexpr uint64_t kLeast = 0x80000000;
  const auto negative = [](int32_t value) { return uint64_t{static_cast<uint32_t>(value)}; };
  EXPECT_EQ(evaluate("cvt.rni.s32.f32", {4, 4}, {values}),
            (Values{2, 4, negative(-2), 3, negative(-3), kMost, 0, kLeast, kLeast, kMost, 0,
                    0x7fffff80}));
  EXPECT_EQ(evaluate("cvt.rzi.s32.f32", {4, 4}, {values}),
            (Values{2, 3, negative(-2), 2, negative(-2), kMost, 0, kLeast, kLeast, kMost, 0,
                    0x7fffff80}));
  EXPECT_EQ(evaluate("cvt.rni.s32.f64", {4, 8}, {{bits(2.5), bits(-2147483648.5), bits(1e10)}}),
            (Values{2, kLeast, kMost}));
  EXPECT_EQ(evaluate("cvt.rzi.u32.f32", {4, 4}, {{bits(-1.f), bits(3e9f), bits(1e10f)}}),
            (Values{0, 3000000000, 0xffffffff}));
}

TEST(PtxFloats, from_integers_rounds_to_the_nearest) {
  const Values large{0, 1, 0xffffffffffffffff, 0x8000008000000000, 0x8000008000000001, 16777217};
  EXPECT_EQ(evaluate("cvt.rn.f32.u64", {4, 8}, {large}),
            (Values{bits(0.f), bits(1.f), bits(0x1p64f), bits(0x1p63f), bits(0x1.000002p63f),
                    bits(16777216.f)}));
  const Values small{0xffffffff, 7, 0x80000000, 16777219};
  EXPECT_EQ(evaluate("cvt.rn.f32.s32", {4, 4}, {small}),
            (Values{bits(-1.f), bits(7.f), bits(-0x1p31f), bits(16777220.f)}));
  EXPECT_EQ(evaluate("cvt.rn.f32.u32", {4, 4}, {small}),
            (Values{bits(0x1p32f), bits(7.f), bits(0x1p31f), bits(16777220.f)}));
  EXPECT_EQ(evaluate("cvt.rn.f32.s16", {4, 2}, {{0xffff, 0x8000}}),
            (Values{bits(-1.f), bits(-32768.f)}));
  EXPECT_EQ(evaluate("cvt.rn.f64.s32", {8, 4}, {{0xffffffff}}), Values{bits(-1.0)});
  EXPECT_EQ(evaluate("cvt.rn.f64.u32", {8, 4}, {{0xffffffff}}), Values{bits(4294967295.0)});
}

TEST(PtxFloats, whole_numbers_and_what_lies_between_0_and_1) {
  EXPECT_EQ(evaluate("cvt.rni.f32.f32", {4, 4},
                     {{bits(0.5f), bits(1.5f), bits(-2.5f), bits(0x1.8p24f), bits(-0.25f)}}),
            (Values{bits(0.f), bits(2.f), bits(-2.f), bits(0x1.8p24f), bits(-0.f)}));
  EXPECT_EQ(evaluate("cvt.sat.f32.f32", {4, 4},
                     {{bits(0.25f), bits(-1.f), bits(7.f), kNan32, bits(kInfinity), bits(1.f)}}),
            (Values{bits(0.25f), 0, bits(1.f), 0, bits(1.f), bits(1.f)}));
}

TEST(PtxFloats, between_floats_of_all_sizes) {
  EXPECT_EQ(evaluate("cvt.f64.f32", {8, 4}, {{bits(0.1f), bits(-kInfinity)}}),
            (Values{bits(static_cast<double>(0.1f)), 0xfff0000000000000}));
  EXPECT_EQ(evaluate("cvt.rn.f32.f64", {4, 8}, {{bits(0.1), bits(1e300), bits(0x1.0000018p0)}}),
            (Values{bits(0.1f), bits(kInfinity), bits(0x1.000002p0f)}));
  // 16 bits: a tie to even below and above, what becomes infinite, subnormals, no number.
  EXPECT_EQ(evaluate("cvt.rn.bf16.f32", {2, 4},
                     {{0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0x00018000, 0xffc00000}}),
            (Values{0x3f80, 0x3f82, 0x3f81, 0x7f80, 0x0002, 0x7fff}));
  EXPECT_EQ(evaluate("cvt.rn.f16.f32", {2, 4},
                     {{bits(0x1.002p0f), bits(0x1.006p0f), bits(65504.f), bits(65520.f),
                       bits(0x1p-24f), bits(0x1p-25f), kNan32, bits(-2.f)}}),
            (Values{0x3c00, 0x3c02, 0x7bff, 0x7c00, 0x0001, 0x0000, 0x7fff, 0xc000}));
  EXPECT_EQ(evaluate("cvt.f32.f16", {4, 2}, {{0x3c01, 0x0001, 0xfc00, 0x7e00, 0x8000}}),
            (Values{bits(0x1.004p0f), bits(0x1p-24f), bits(-kInfinity), kNan32, bits(-0.f)}));
  // The first operand is the upper half.
  EXPECT_EQ(evaluate("cvt.rn.bf16x2.f32", {4, 4, 4}, {{bits(1.f)}, {bits(-2.f)}}),
            Values{0x3f80c000});
  EXPECT_EQ(evaluate("cvt.rn.f16x2.f32", {4, 4, 4}, {{bits(1.f)}, {bits(-2.f)}}),
            Values{0x3c00c000});
}

TEST(PtxFloats, arithmetic_of_64_bits) {
  const Values a{bits(0.1), bits(1e308), bits(-2.0), bits(0x1.0000000000001p0)};
  const Values b{bits(0.2), bits(10.0), bits(3.0), bits(0x1.0000000000001p0)};
  const Values c{bits(-0.3), bits(1.0), bits(6.0), bits(-1.0)};
  using U = uint64_t;
  const auto d = [](U value) { return std::bit_cast<double>(value); };
  const std::vector<Values> three{a, b, c};
  expect_gives("fma.rn.f64", {8, 8, 8, 8}, three,
               [&](U x, U y, U z) { return bits(std::fma(d(x), d(y), d(z))); });
  const std::vector<Values> two{a, b};
  expect_gives("add.f64", {8, 8, 8}, two, [&](U x, U y, U) { return bits(d(x) + d(y)); });
  expect_gives("mul.f64", {8, 8, 8}, two, [&](U x, U y, U) { return bits(d(x) * d(y)); });
  expect_gives("mul.rn.f64", {8, 8, 8}, two, [&](U x, U y, U) { return bits(d(x) * d(y)); });
  expect_gives("neg.f64", {8, 8}, {a}, [](U x, U, U) { return x ^ U { 1 } << 63; });
  expect_gives("abs.f64", {8, 8}, {a}, [](U x, U, U) { return x & ~(U{1} << 63); });
  expect_gives("setp.gtu.f64", {1, 8, 8}, two, [&](U x, U y, U) { return U{d(x) > d(y)}; });
}

}  // namespace
}  // namespace lockstep::ptx
