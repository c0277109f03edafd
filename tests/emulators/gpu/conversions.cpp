// cvt: from one type to another. Integers may come from registers wider than their type, whose
// upper bits do not matter.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "tests/emulators/gpu/lane_loops.h"
#include "tests/emulators/gpu/operations.h"
#include "tests/emulators/gpu/rounding.h"

namespace lockstep::ptx {
namespace {

template <typename T>
std::string type_name() {
  const char kind = std::is_floating_point_v<T> ? 'f' : (std::is_signed_v<T> ? 's' : 'u');
  return kind + std::to_string(8 * sizeof(T));
}

template <typename... T>
struct Types {};
using Integers = Types<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t>;
using RegisterIntegers = Types<uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t>;

template <typename... T, typename Function>
void for_each(Types<T...>, Function function) {
  (function(std::type_identity<T>{}), ...);
}

// The nearest integer in the type's range; 0 for what is no number.
template <typename To, typename From>
To clamped(From whole) {
  constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
  // The first power of two that is too large: exact, unlike the largest integer.
  constexpr From kTooLarge =
      static_cast<From>(uint64_t{1} << (std::numeric_limits<To>::digits - 1)) * 2;
  if (whole != whole) return 0;
  if (whole < kLow) return std::numeric_limits<To>::min();
  return whole >= kTooLarge ? std::numeric_limits<To>::max() : static_cast<To>(whole);
}

template <typename Float, typename Integer>
void add_float_and_integer(Operations& table) {
  const std::string to_integer = "." + type_name<Integer>() + "." + type_name<Float>();
  using Whole = Integer(Float);
  table.add("cvt.rni" + to_integer,
            each_lane<Whole>([](Float a) { return clamped<Integer>(std::rint(a)); }));
  table.add("cvt.rzi" + to_integer,
            each_lane<Whole>([](Float a) { return clamped<Integer>(std::trunc(a)); }));
  table.add("cvt.rmi" + to_integer,
            each_lane<Whole>([](Float a) { return clamped<Integer>(std::floor(a)); }));
  table.add("cvt.rpi" + to_integer,
            each_lane<Whole>([](Float a) { return clamped<Integer>(std::ceil(a)); }));
  table.add("cvt.rn." + type_name<Float>() + "." + type_name<Integer>(),
            each_lane<Float(Integer)>([](Integer a) { return static_cast<Float>(a); }));
}

// "cvt.u64.u32" reads a register of 4 bytes; where the register is wider than the type the decoder
// adds "<" and the register's bits: "cvt.s32.s8<32".
template <typename From, typename Register>
void add_between_integers(Operations& table, const std::string& suffix) {
  for_each(RegisterIntegers{}, [&]<typename To>(std::type_identity<To>) {
    table.add(
        "cvt." + type_name<To>() + "." + type_name<From>() + suffix,
        each_lane<To(Register)>([](Register a) { return static_cast<To>(static_cast<From>(a)); }));
  });
}

}  // namespace

void add_conversions(Operations& table) {
  for_each(RegisterIntegers{}, [&]<typename T>(std::type_identity<T>) {
    add_float_and_integer<float, T>(table);
    add_float_and_integer<double, T>(table);
  });
  for_each(Integers{}, [&]<typename From>(std::type_identity<From>) {
    if constexpr (sizeof(From) > 1) add_between_integers<From, From>(table, "");
    if constexpr (sizeof(From) < 2) add_between_integers<From, uint16_t>(table, "<16");
    if constexpr (sizeof(From) < 4) add_between_integers<From, uint32_t>(table, "<32");
    if constexpr (sizeof(From) < 8) add_between_integers<From, uint64_t>(table, "<64");
  });
  table.add("cvt.f64.f32", each_lane<double(float)>([](float a) { return double{a}; }));
  table.add("cvt.rn.f32.f64",
            each_lane<float(double)>([](double a) { return canonical(static_cast<float>(a)); }));
  table.add("cvt.rni.f32.f32", each_lane<float(float)>([](float a) { return std::rint(a); }));
  table.add("cvt.rzi.f32.f32", each_lane<float(float)>([](float a) { return std::trunc(a); }));
  table.add("cvt.rmi.f32.f32", each_lane<float(float)>([](float a) { return std::floor(a); }));
  table.add("cvt.rpi.f32.f32", each_lane<float(float)>([](float a) { return std::ceil(a); }));
  // Into 0 .. 1; what is no number becomes 0.
  table.add("cvt.sat.f32.f32", each_lane<float(float)>([](float a) {
              const float positive = a > 0 ? a : 0;
              return positive < 1 ? positive : 1;
            }));
  table.add("cvt.rn.bf16.f32", each_lane<uint16_t(float)>([](float a) { return to_bf16(a); }));
  table.add("cvt.f32.bf16",
            each_lane<float(uint16_t)>([](uint16_t a) { return canonical(from_bf16(a)); }));
  // The first operand becomes the upper half.
  table.add("cvt.rn.bf16x2.f32", each_lane<uint32_t(float, float)>([](float a, float b) {
              return uint32_t{to_bf16(a)} << 16 | to_bf16(b);
            }));
  table.add("cvt.rn.f16.f32", each_lane<uint16_t(float)>([](float a) { return to_f16(a); }));
  table.add("cvt.f32.f16", each_lane<float(uint16_t)>([](uint16_t a) { return from_f16(a); }));
  table.add("cvt.rn.f16x2.f32", each_lane<uint32_t(float, float)>([](float a, float b) {
              return uint32_t{to_f16(a)} << 16 | to_f16(b);
            }));
}

}  // namespace lockstep::ptx
