// Arithmetic on floats. Plain names ("add.f32") round to the nearest as ".rn" does; what a GPU may
// make of a product and a sum that follow each other (one fma) is not emulated.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/emulators/gpu/lane_loops.h"
#include "tests/emulators/gpu/operations.h"
#include "tests/emulators/gpu/rounding.h"

namespace lockstep::ptx {
namespace {

// max and min: a number wins over a NaN, and 0 is more than -0.
template <typename T, typename Bits>
T larger(T a, T b) {
  const T ordered = a > b ? a : b;
  const T zero =
      std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(a) & std::bit_cast<Bits>(b)));
  const T of_numbers = a == b ? zero : ordered;
  return b != b ? canonical(a) : of_numbers;
}
template <typename T, typename Bits>
T smaller(T a, T b) {
  const T ordered = a < b ? a : b;
  const T zero =
      std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(a) | std::bit_cast<Bits>(b)));
  const T of_numbers = a == b ? zero : ordered;
  return b != b ? canonical(a) : of_numbers;
}

template <typename T, typename Bits>
void add_float_arithmetic(Operations& table, const std::string& type) {
  using Two = T(T, T);
  for (const std::string rounding : {".", ".rn."}) {
    table.add("add" + rounding + type, each_lane<Two>([](T a, T b) { return canonical(a + b); }));
    table.add("sub" + rounding + type, each_lane<Two>([](T a, T b) { return canonical(a - b); }));
    table.add("mul" + rounding + type, each_lane<Two>([](T a, T b) { return canonical(a * b); }));
  }
  table.add("div.rn." + type, each_lane<Two>([](T a, T b) { return canonical(a / b); }));
  table.add("fma.rn." + type,
            each_lane<T(T, T, T)>([](T a, T b, T c) { return canonical(std::fma(a, b, c)); }));
  table.add("sqrt.rn." + type, each_lane<T(T)>([](T a) { return canonical(std::sqrt(a)); }));
  table.add("rcp.rn." + type, each_lane<T(T)>([](T a) { return canonical(T{1} / a); }));
  constexpr Bits kSign = Bits{1} << (8 * sizeof(T) - 1);
  table.add("neg." + type, each_lane<Bits(Bits)>([](Bits a) { return a ^ kSign; }));
  table.add("abs." + type, each_lane<Bits(Bits)>([](Bits a) { return a & ~kSign; }));
  table.add("max." + type, each_lane<Two>([](T a, T b) { return larger<T, Bits>(a, b); }));
  table.add("min." + type, each_lane<Two>([](T a, T b) { return smaller<T, Bits>(a, b); }));
}

// 2^x to 22 bits or more ("approx"), zeros for subnormals where `kFlush` ("ftz": those that are
// given; those that are taken give 1 in any case). A GPU's own last bit may differ. For x = n + f,
// n the nearest integer: 2^n times the series of e^(f ln 2).
template <bool kFlush>
float power_of_two(float x) {
  constexpr float kLeast = kFlush ? -127.f : -151.f;
  const float kept = x >= kLeast ? (x > 128.f ? 128.f : x) : kLeast;  // NaN, too, has an integer
  const float n = std::rint(kept);
  const double f = (static_cast<double>(kept) - static_cast<double>(n)) * 0.69314718055994530942;
  double series = 1.0 / 40320;
  series = series * f + 1.0 / 5040;
  series = series * f + 1.0 / 720;
  series = series * f + 1.0 / 120;
  series = series * f + 1.0 / 24;
  series = series * f + 1.0 / 6;
  series = series * f + 0.5;
  series = series * f + 1.0;
  series = series * f + 1.0;
  const uint64_t exponent = static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(n)));
  const double power = std::bit_cast<double>((exponent + 1023) << 52);
  const float result = static_cast<float>(series * power);
  return x == x ? (kFlush && result < 0x1p-126f ? 0.f : result) : canonical(x);
}

// 1 / x: to 23 bits, without subnormals; of 64 bits the upper half, of the operand's upper half.
float near_reciprocal(float x) {
  const float taken = std::fabs(x) < 0x1p-126f ? std::copysign(0.f, x) : x;
  const float result = 1.f / taken;
  return canonical(std::fabs(result) < 0x1p-126f ? std::copysign(0.f, result) : result);
}
double near_reciprocal(double x) {
  constexpr uint64_t kUpper = 0xffffffff00000000;
  const double upper = std::bit_cast<double>(std::bit_cast<uint64_t>(x) & kUpper);
  const double taken = std::fabs(upper) < 0x1p-1022 ? std::copysign(0.0, x) : upper;
  const double result = 1 / taken;
  const double kept = std::bit_cast<double>(std::bit_cast<uint64_t>(result) & kUpper);
  return std::fabs(kept) < 0x1p-1022 ? std::copysign(0.0, result) : kept;
}

void run_add_towards_zero(Warp& warp, const Instruction& instruction) {
  float* const result = warp.lanes<float>(instruction.registers[0]);
  const float* const a = warp.lanes<const float>(instruction.registers[1]);
  const float* const b = warp.lanes<const float>(instruction.registers[2]);
  const RoundingMode rounding(_MM_ROUND_TOWARD_ZERO);
#pragma GCC ivdep
  for (uint32_t lane = 0; lane < kLanes; ++lane) result[lane] = canonical(a[lane] + b[lane]);
}

void fma_towards(uint32_t mode, float* result, const float* a, const float* b, const float* c) {
  const RoundingMode rounding(mode);
#pragma GCC ivdep
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    result[lane] = canonical(std::fma(a[lane], b[lane], c[lane]));
  }
}

template <uint32_t kMode>
void run_directed_fma(Warp& warp, const Instruction& instruction) {
  const uint32_t* const registers = instruction.registers;
  fma_towards(kMode, warp.lanes<float>(registers[0]), warp.lanes<const float>(registers[1]),
              warp.lanes<const float>(registers[2]), warp.lanes<const float>(registers[3]));
}

// A product and a sum rounded once, to bf16: first to the float with an odd last bit that is next
// to the exact value (rounded down and up, one of the two is odd), which then rounds to fewer bits
// as the exact value does.
void fma_bf16(uint16_t* result, const float* a, const float* b, const float* c) {
  alignas(64) float down[kLanes];
  alignas(64) float up[kLanes];
  fma_towards(_MM_ROUND_DOWN, down, a, b, c);
  fma_towards(_MM_ROUND_UP, up, a, b, c);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const bool down_is_odd = std::bit_cast<uint32_t>(down[lane]) & 1;
    const float odd = down[lane] != up[lane] && down_is_odd ? down[lane] : up[lane];
    result[lane] = to_bf16(odd);
  }
}

void run_fma_bf16x2(Warp& warp, const Instruction& instruction) {
  alignas(64) float values[3][kLanes];
  alignas(64) uint16_t halves[2][kLanes];
  for (uint32_t half = 0; half < 2; ++half) {
    for (uint32_t operand = 0; operand < 3; ++operand) {
      const uint32_t* const from = warp.lanes<const uint32_t>(instruction.registers[operand + 1]);
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        const uint32_t bits = half == 0 ? from[lane] << 16 : from[lane] & 0xffff0000;
        values[operand][lane] = std::bit_cast<float>(bits);
      }
    }
    fma_bf16(halves[half], values[0], values[1], values[2]);
  }
  uint32_t* const result = warp.lanes<uint32_t>(instruction.registers[0]);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    result[lane] = uint32_t{halves[1][lane]} << 16 | halves[0][lane];
  }
}

}  // namespace

void add_float_operations(Operations& table) {
  add_float_arithmetic<float, uint32_t>(table, "f32");
  add_float_arithmetic<double, uint64_t>(table, "f64");
  table.add("ex2.approx.ftz.f32",
            each_lane<float(float)>([](float x) { return power_of_two<true>(x); }));
  table.add("ex2.approx.f32",
            each_lane<float(float)>([](float x) { return power_of_two<false>(x); }));
  table.add("rcp.approx.ftz.f32",
            each_lane<float(float)>([](float x) { return near_reciprocal(x); }));
  table.add("rcp.approx.ftz.f64",
            each_lane<double(double)>([](double x) { return near_reciprocal(x); }));
  table.add("copysign.f32", each_lane<uint32_t(uint32_t, uint32_t)>([](uint32_t a, uint32_t b) {
              return (a & 0x80000000) | (b & 0x7fffffff);
            }));
  table.add("add.rz.f32", {&run_add_towards_zero, 4, {4, 4}});
  table.add("fma.rm.f32", {&run_directed_fma<_MM_ROUND_DOWN>, 4, {4, 4, 4}});
  table.add("fma.rp.f32", {&run_directed_fma<_MM_ROUND_UP>, 4, {4, 4, 4}});
  table.add("fma.rz.f32", {&run_directed_fma<_MM_ROUND_TOWARD_ZERO>, 4, {4, 4, 4}});
  table.add("fma.rn.bf16x2", {&run_fma_bf16x2, 4, {4, 4, 4}});
}

}  // namespace lockstep::ptx
