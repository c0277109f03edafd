#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/emulators/gpu/small_kernels.h"

namespace lockstep::ptx {
namespace {

using Values = std::vector<uint64_t>;

constexpr size_t kCount = 256;

// Small and large numbers, and those at which something changes.
Values numbers(uint32_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  const uint64_t mask = bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1;
  Values values{0, 1, 2, 31, 32, 63, 64, mask, mask - 1, mask / 2, mask / 2 + 1};
  while (values.size() < kCount) values.push_back((random() >> (random() % 64)) & mask);
  std::shuffle(values.begin(), values.end(), random);
  return values;
}

uint64_t masked(uint64_t value, uint32_t bytes) {
  return bytes == 8 ? value : value & ((uint64_t{1} << (8 * bytes)) - 1);
}
int64_t with_sign(uint64_t value, uint32_t bytes) {
  const uint32_t unused = 64 - 8 * bytes;
  return static_cast<int64_t>(value << unused) >> unused;
}

using Function = std::function<uint64_t(uint64_t a, uint64_t b, uint64_t c)>;

// `instruction` with operands of these widths gives what `expected` does.
void expect_gives(const std::string& instruction, const std::vector<uint32_t>& widths,
                  const Function& expected) {
  std::vector<Values> operands;
  for (size_t i = 1; i < widths.size(); ++i) {
    operands.push_back(numbers(widths[i], i));
    if (widths[i] == 1) {
      for (uint64_t& value : operands.back()) value &= 1;
    }
  }
  const Values results = evaluate(instruction, widths, operands);
  for (size_t t = 0; t < kCount; ++t) {
    const auto operand = [&](size_t i) { return i < operands.size() ? operands[i][t] : 0; };
    ASSERT_EQ(results[t], masked(expected(operand(0), operand(1), operand(2)), widths[0]))
        << instruction << " of " << operand(0) << ", " << operand(1) << ", " << operand(2);
  }
}

TEST(PtxIntegers, arithmetic_wraps_around) {
  for (const uint32_t w : {2u, 4u, 8u}) {
    for (const char* sign : {"u", "s"}) {
      const std::string type = sign + std::to_string(8 * w);
      using U = uint64_t;
      expect_gives("add." + type, {w, w, w}, [](U a, U b, U) { return a + b; });
      expect_gives("sub." + type, {w, w, w}, [](U a, U b, U) { return a - b; });
      expect_gives("mul.lo." + type, {w, w, w}, [](U a, U b, U) { return a * b; });
      expect_gives("mad.lo." + type, {w, w, w, w}, [](U a, U b, U c) { return a * b + c; });
    }
    const std::string type = std::to_string(8 * w);
    expect_gives("neg.s" + type, {w, w}, [](uint64_t a, uint64_t, uint64_t) { return 0 - a; });
    expect_gives("not.b" + type, {w, w}, [](uint64_t a, uint64_t, uint64_t) { return ~a; });
    expect_gives("and.b" + type, {w, w, w}, [](uint64_t a, uint64_t b, uint64_t) { return a & b; });
    expect_gives("or.b" + type, {w, w, w}, [](uint64_t a, uint64_t b, uint64_t) { return a | b; });
    expect_gives("xor.b" + type, {w, w, w}, [](uint64_t a, uint64_t b, uint64_t) { return a ^ b; });
    expect_gives("abs.s" + type, {w, w},
                 [w](uint64_t a, uint64_t, uint64_t) { return with_sign(a, w) < 0 ? 0 - a : a; });
  }
}

TEST(PtxIntegers, upper_halves_and_wide_products_mind_the_sign) {
  for (const uint32_t w : {2u, 4u, 8u}) {
    const std::string type = std::to_string(8 * w);
    const Function high_unsigned = [w](uint64_t a, uint64_t b, uint64_t) {
      return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> (8 * w));
    };
    const Function high_signed = [w](uint64_t a, uint64_t b, uint64_t) {
      return static_cast<uint64_t>(static_cast<__int128>(with_sign(a, w)) * with_sign(b, w) >>
                                   (8 * w));
    };
    expect_gives("mul.hi.u" + type, {w, w, w}, high_unsigned);
    expect_gives("mul.hi.s" + type, {w, w, w}, high_signed);
    if (w == 8) continue;
    expect_gives("mul.wide.u" + type, {2 * w, w, w},
                 [](uint64_t a, uint64_t b, uint64_t) { return a * b; });
    expect_gives("mul.wide.s" + type, {2 * w, w, w}, [w](uint64_t a, uint64_t b, uint64_t) {
      return static_cast<uint64_t>(with_sign(a, w) * with_sign(b, w));
    });
    expect_gives("mad.wide.u" + type, {2 * w, w, w, 2 * w},
                 [](uint64_t a, uint64_t b, uint64_t c) { return a * b + c; });
  }
}

TEST(PtxIntegers, quotients_and_order_mind_the_sign) {
  for (const uint32_t w : {2u, 4u, 8u}) {
    const std::string type = std::to_string(8 * w);
    const auto s = [w](uint64_t value) { return with_sign(value, w); };
    using U = uint64_t;
    // Division by 0 has no value that anybody relies on; here it is all ones.
    expect_gives("div.u" + type, {w, w, w}, [](U a, U b, U) { return b == 0 ? ~U{0} : a / b; });
    expect_gives("rem.u" + type, {w, w, w}, [](U a, U b, U) { return b == 0 ? ~U{0} : a % b; });
    expect_gives("div.s" + type, {w, w, w}, [&](U a, U b, U) {
      if (b == 0) return ~U{0};
      return s(b) == -1 ? 0 - a : static_cast<U>(s(a) / s(b));
    });
    expect_gives("rem.s" + type, {w, w, w}, [&](U a, U b, U) {
      if (b == 0) return ~U{0};
      return s(b) == -1 ? 0 : static_cast<U>(s(a) % s(b));
    });
    expect_gives("min.u" + type, {w, w, w}, [](U a, U b, U) { return std::min(a, b); });
    expect_gives("max.u" + type, {w, w, w}, [](U a, U b, U) { return std::max(a, b); });
    expect_gives("min.s" + type, {w, w, w}, [&](U a, U b, U) { return s(a) < s(b) ? a : b; });
    expect_gives("max.s" + type, {w, w, w}, [&](U a, U b, U) { return s(a) > s(b) ? a : b; });
    expect_gives("setp.lt.u" + type, {1, w, w}, [](U a, U b, U) { return a < b; });
    expect_gives("setp.ge.u" + type, {1, w, w}, [](U a, U b, U) { return a >= b; });
    expect_gives("setp.gt.u" + type, {1, w, w}, [](U a, U b, U) { return a > b; });
    expect_gives("setp.le.u" + type, {1, w, w}, [](U a, U b, U) { return a <= b; });
    expect_gives("setp.lt.s" + type, {1, w, w}, [&](U a, U b, U) { return s(a) < s(b); });
    expect_gives("setp.ge.s" + type, {1, w, w}, [&](U a, U b, U) { return s(a) >= s(b); });
    expect_gives("setp.gt.s" + type, {1, w, w}, [&](U a, U b, U) { return s(a) > s(b); });
    expect_gives("setp.le.s" + type, {1, w, w}, [&](U a, U b, U) { return s(a) <= s(b); });
    expect_gives("setp.eq.b" + type, {1, w, w}, [](U a, U b, U) { return a == b; });
    expect_gives("setp.ne.s" + type, {1, w, w}, [](U a, U b, U) { return a != b; });
  }
}

TEST(PtxIntegers, shifts_by_too_many_bits_leave_zeros_or_the_sign) {
  for (const uint32_t w : {2u, 4u, 8u}) {
    const std::string type = std::to_string(8 * w);
    const uint64_t bits = 8 * w;
    using U = uint64_t;
    expect_gives("shl.b" + type, {w, w, 4}, [=](U a, U b, U) { return b < bits ? a << b : 0; });
    expect_gives("shr.u" + type, {w, w, 4}, [=](U a, U b, U) { return b < bits ? a >> b : 0; });
    expect_gives("shr.b" + type, {w, w, 4}, [=](U a, U b, U) { return b < bits ? a >> b : 0; });
    expect_gives("shr.s" + type, {w, w, 4}, [=](U a, U b, U) {
      return static_cast<U>(with_sign(a, w) >> std::min(b, bits - 1));
    });
  }
}

TEST(PtxIntegers, counts_of_bits) {
  expect_gives("popc.b32", {4, 4}, [](uint64_t a, uint64_t, uint64_t) { return std::popcount(a); });
  expect_gives("popc.b64", {4, 8}, [](uint64_t a, uint64_t, uint64_t) { return std::popcount(a); });
  expect_gives("clz.b32", {4, 4}, [](uint64_t a, uint64_t, uint64_t) {
    return static_cast<uint64_t>(std::countl_zero(static_cast<uint32_t>(a)));
  });
  expect_gives("clz.b64", {4, 8}, [](uint64_t a, uint64_t, uint64_t) {
    return static_cast<uint64_t>(std::countl_zero(a));
  });
}

TEST(PtxIntegers, fields_of_bits_are_put_where_there_is_space) {
  for (const uint32_t w : {4u, 8u}) {
    const std::vector<Values> operands{numbers(w, 1), numbers(w, 2), numbers(4, 3), numbers(4, 4)};
    const Values results = evaluate("bfi.b" + std::to_string(8 * w), {w, w, w, 4, 4}, operands);
    for (size_t t = 0; t < kCount; ++t) {
      uint64_t expected = operands[1][t];
      const uint64_t first = operands[2][t] & 255;
      for (uint64_t i = 0; i < (operands[3][t] & 255) && first + i < 8 * w; ++i) {
        const uint64_t bit = i < 64 ? (operands[0][t] >> i) & 1 : 0;
        expected = (expected & ~(uint64_t{1} << (first + i))) | bit << (first + i);
      }
      ASSERT_EQ(results[t], expected) << w << " bytes, value " << t;
    }
  }
}

TEST(PtxIntegers, lop3_is_any_function_of_three_bits) {
  // PTX ISA, "lop3": the table is what the function makes of 0xF0, 0xCC, 0xAA.
  std::string body = "ld.param.u64 %rd0, [p0]; mov.u32 %r0, 0xF0; mov.u32 %r1, 0xCC;\n";
  for (uint32_t function = 0; function < 256; ++function) {
    body += fmt::format("lop3.b32 %r2, %r0, %r1, 0xAA, {}; st.global.u32 [%rd0+{}], %r2;\n",
                        function, 4 * function);
  }
  std::vector<uint32_t> results;
  ASSERT_EQ(run_body(body, 1024, &results, {1, 1, 1}), "");
  for (uint32_t function = 0; function < 256; ++function) {
    EXPECT_EQ(results[function] & 255, function);
  }
}

TEST(PtxIntegers, prmt_picks_bytes_and_signs) {
  const Values a{0x33221180, 0x33221180, 0x33221180};
  const Values b{0xf7665544, 0xf7665544, 0xf7665544};
  const Values selectors{0x7450, 0xf8b0, 0x0123};
  EXPECT_EQ(evaluate("prmt.b32", {4, 4, 4, 4}, {a, b, selectors}),
            (Values{0xf7445580, 0xffff0080, 0x80112233}));
}

TEST(PtxIntegers, conversions_cut_off_and_extend) {
  using U = uint64_t;
  for (const uint32_t from : {2u, 4u, 8u}) {
    for (const uint32_t to : {2u, 4u, 8u}) {
      const auto name = [&](const char* to_sign, const char* from_sign) {
        return "cvt." + (to_sign + std::to_string(8 * to)) + "." +
               (from_sign + std::to_string(8 * from));
      };
      expect_gives(name("u", "u"), {to, from}, [](U a, U, U) { return a; });
      expect_gives(name("s", "u"), {to, from}, [](U a, U, U) { return a; });
      expect_gives(name("u", "s"), {to, from}, [=](U a, U, U) { return U(with_sign(a, from)); });
      expect_gives(name("s", "s"), {to, from}, [=](U a, U, U) { return U(with_sign(a, from)); });
    }
    // A type of fewer bytes than the register that it is in.
    if (from == 8) continue;
    expect_gives("cvt.s32.s8", {4, from}, [](U a, U, U) { return U(with_sign(a & 255, 1)); });
    expect_gives("cvt.s16.s8", {2, from}, [](U a, U, U) { return U(with_sign(a & 255, 1)); });
    expect_gives("cvt.u32.u8", {4, from}, [](U a, U, U) { return a & 255; });
  }
}

TEST(PtxIntegers, carries_go_through_chains) {
  // 128 bits: sum, difference and product of two numbers, as nvcc's own texts have them.
  constexpr const char* kBody = R"(
    ld.param.u64 %rd0, [p0];
    ld.param.u64 %rd1, [p1];
    mov.u32 %r63, %tid.x;
    mul.wide.u32 %rd2, %r63, 16;
    add.s64 %rd1, %rd1, %rd2;
    mul.wide.u32 %rd2, %r63, 48;
    add.s64 %rd0, %rd0, %rd2;
    ld.global.v2.u32 {%r0, %r1}, [%rd1];
    ld.global.v2.u32 {%r2, %r3}, [%rd1+8];
    add.cc.u32 %r10, %r0, %r2;
    addc.cc.u32 %r11, %r1, %r3;
    addc.u32 %r12, 0, 0;
    st.global.v2.u32 [%rd0], {%r10, %r11};
    st.global.u32 [%rd0+8], %r12;
    sub.cc.u32 %r10, %r0, %r2;
    subc.cc.u32 %r11, %r1, %r3;
    subc.u32 %r12, 0, 0;
    st.global.v2.u32 [%rd0+16], {%r10, %r11};
    st.global.u32 [%rd0+24], %r12;
    mul.lo.u32 %r10, %r0, %r2;
    mul.hi.u32 %r11, %r0, %r2;
    mad.lo.cc.u32 %r11, %r0, %r3, %r11;
    madc.hi.u32 %r12, %r0, %r3, 0;
    mad.lo.cc.u32 %r11, %r1, %r2, %r11;
    madc.hi.cc.u32 %r12, %r1, %r2, %r12;
    madc.hi.u32 %r13, %r1, %r3, 0;
    mad.lo.cc.u32 %r12, %r1, %r3, %r12;
    addc.u32 %r13, %r13, 0;
    st.global.v4.u32 [%rd0+32], {%r10, %r11, %r12, %r13};
  )";
  TestMemory memory;
  Values inputs = numbers(8, 5);
  inputs.insert(inputs.end(), {~uint64_t{0}, ~uint64_t{0}, 0, ~uint64_t{0}});
  const auto threads = static_cast<uint32_t>(inputs.size() / 2);
  const uint64_t from = memory.add(inputs);
  const uint64_t to = memory.add(threads * 48);
  const Module module = parsed(kernel_text(kBody, 2));
  ASSERT_EQ(run_block(small_launch(module, {to, from}, {threads, 1, 1}), memory), "");
  const auto* const results = memory.at<uint64_t>(to);
  for (size_t t = 0; t < threads; ++t) {
    const unsigned __int128 a = inputs[2 * t];
    const uint64_t b = inputs[2 * t + 1];
    const auto* const its = results + t * 6;
    EXPECT_EQ(its[0], static_cast<uint64_t>(a + b)) << t;
    EXPECT_EQ(its[1], static_cast<uint64_t>((a + b) >> 64)) << t;
    EXPECT_EQ(its[2], static_cast<uint64_t>(a - b)) << t;
    EXPECT_EQ(its[3], static_cast<uint32_t>(a < b ? -1 : 0)) << t;
    EXPECT_EQ(its[4], static_cast<uint64_t>(a * b)) << t;
    EXPECT_EQ(its[5], static_cast<uint64_t>((a * b) >> 64)) << t;
  }
}

}  // namespace
}  // namespace lockstep::ptx
