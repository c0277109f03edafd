// Integers and bits. What wraps around is computed without sign.
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "tests/emulators/gpu/lane_loops.h"
#include "tests/emulators/gpu/operations.h"

namespace lockstep::ptx {
namespace {

template <typename T>
struct Twice;
template <>
struct Twice<uint16_t> {
  using Type = uint32_t;
};
template <>
struct Twice<int16_t> {
  using Type = int32_t;
};
template <>
struct Twice<uint32_t> {
  using Type = uint64_t;
};
template <>
struct Twice<int32_t> {
  using Type = int64_t;
};
template <>
struct Twice<uint64_t> {
  using Type = unsigned __int128;
};
template <>
struct Twice<int64_t> {
  using Type = __int128;
};
template <typename T>
using TwiceType = typename Twice<T>::Type;

template <typename T>
constexpr uint32_t kBits = 8 * sizeof(T);

template <typename T>
T high_half(T a, T b) {
  return static_cast<T>(static_cast<TwiceType<T>>(static_cast<TwiceType<T>>(a) * b) >> kBits<T>);
}

// Division by 0, which a GPU leaves unspecified, gives all ones here; the host would stop.
template <typename T>
T quotient(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(T{0} - a);
  return static_cast<T>(a / b);
}
template <typename T>
T remainder(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
  return static_cast<T>(a % b);
}

// Signed or not, `type` is the name of T.
template <typename T>
void add_arithmetic(Operations& table, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  // C++ multiplies numbers of 16 bits as int, which the product may overflow.
  using Wide = std::conditional_t<sizeof(T) == 2, uint32_t, U>;
  table.add("add." + type, each_lane<U(U, U)>([](U a, U b) { return static_cast<U>(a + b); }));
  table.add("sub." + type, each_lane<U(U, U)>([](U a, U b) { return static_cast<U>(a - b); }));
  table.add("mul.lo." + type,
            each_lane<U(U, U)>([](U a, U b) { return static_cast<U>(Wide{a} * Wide{b}); }));
  table.add("mul.hi." + type, each_lane<T(T, T)>([](T a, T b) { return high_half(a, b); }));
  table.add("mad.lo." + type, each_lane<U(U, U, U)>([](U a, U b, U c) {
              return static_cast<U>(Wide{a} * Wide{b} + Wide{c});
            }));
  table.add("div." + type, each_lane<T(T, T)>([](T a, T b) { return quotient(a, b); }));
  table.add("rem." + type, each_lane<T(T, T)>([](T a, T b) { return remainder(a, b); }));
  table.add("min." + type, each_lane<T(T, T)>([](T a, T b) { return a < b ? a : b; }));
  table.add("max." + type, each_lane<T(T, T)>([](T a, T b) { return a > b ? a : b; }));
  // A shift by as many bits as there are, or more, leaves zeros or copies of the sign.
  table.add("shr." + type, each_lane<T(T, uint32_t)>([](T a, uint32_t by) {
              if constexpr (std::is_signed_v<T>) {
                return static_cast<T>(a >> (by < kBits<T> ? by : kBits<T> - 1));
              } else {
                return static_cast<T>(by < kBits<T> ? a >> by : 0);
              }
            }));
  if constexpr (std::is_signed_v<T>) {
    table.add("neg." + type, each_lane<U(U)>([](U a) { return static_cast<U>(U{0} - a); }));
    table.add("abs." + type,
              each_lane<U(T)>([](T a) { return static_cast<U>(a < 0 ? U{0} - U(a) : U(a)); }));
  }
  if constexpr (sizeof(T) < 8) {
    using W = TwiceType<T>;
    table.add("mul.wide." + type,
              each_lane<W(T, T)>([](T a, T b) { return static_cast<W>(W{a} * W{b}); }));
    table.add("mad.wide." + type, each_lane<W(T, T, W)>([](T a, T b, W c) {
                using V = std::make_unsigned_t<W>;
                return static_cast<W>(static_cast<V>(W{a} * W{b}) + static_cast<V>(c));
              }));
  }
}

template <typename U>
void add_bits(Operations& table, const std::string& type) {
  table.add("and." + type, each_lane<U(U, U)>([](U a, U b) { return static_cast<U>(a & b); }));
  table.add("or." + type, each_lane<U(U, U)>([](U a, U b) { return static_cast<U>(a | b); }));
  table.add("xor." + type, each_lane<U(U, U)>([](U a, U b) { return static_cast<U>(a ^ b); }));
  table.add("not." + type, each_lane<U(U)>([](U a) { return static_cast<U>(~a); }));
  table.add("shl." + type, each_lane<U(U, uint32_t)>([](U a, uint32_t by) {
              return static_cast<U>(by < kBits<U> ? a << by : 0);
            }));
  table.add("shr." + type, each_lane<U(U, uint32_t)>([](U a, uint32_t by) {
              return static_cast<U>(by < kBits<U> ? a >> by : 0);
            }));
}

// Instructions that exist for 32 and 64 bits only.
template <typename U>
void add_bit_fields(Operations& table, const std::string& type) {
  table.add("popc." + type,
            each_lane<uint32_t(U)>([](U a) { return static_cast<uint32_t>(std::popcount(a)); }));
  table.add("clz." + type,
            each_lane<uint32_t(U)>([](U a) { return static_cast<uint32_t>(std::countl_zero(a)); }));
  // The lowest `count` bits of a, put into b from bit `first` on; both are taken modulo 256, and
  // bits beyond the register are none.
  table.add("bfi." + type,
            each_lane<U(U, U, uint32_t, uint32_t)>([](U a, U b, uint32_t first, uint32_t count) {
              first &= 255;
              count &= 255;
              if (first >= kBits<U>) return b;
              const U ones = count < kBits<U> ? (U{1} << count) - 1 : ~U{0};
              const U field = ones << first;
              return static_cast<U>((b & ~field) | ((a << first) & field));
            }));
}

// The bit that a sum has beyond U; of a difference, whether it is below 0.
template <typename U>
uint8_t carry_of(TwiceType<U> sum) {
  return static_cast<uint8_t>((sum >> kBits<U>)&1);
}

// Sums with a carry: each instruction of a chain is two operations. NAMEc gives the value, NAMEc.cc
// the flag. Subtraction's flag is a borrow.
template <typename U>
void add_carries(Operations& table, const std::string& type) {
  using W = TwiceType<U>;
  using Value = U(U, U, uint8_t);
  using Flag = uint8_t(U, U, uint8_t);
  using Value3 = U(U, U, U, uint8_t);
  using Flag3 = uint8_t(U, U, U, uint8_t);
  table.add("addc." + type,
            each_lane<Value>([](U a, U b, uint8_t flag) { return static_cast<U>(a + b + flag); }));
  table.add("addc.cc." + type,
            each_lane<Flag>([](U a, U b, uint8_t flag) { return carry_of<U>(W{a} + b + flag); }));
  table.add("subc." + type,
            each_lane<Value>([](U a, U b, uint8_t flag) { return static_cast<U>(a - b - flag); }));
  table.add("subc.cc." + type,
            each_lane<Flag>([](U a, U b, uint8_t flag) { return carry_of<U>(W{a} - b - flag); }));
  table.add("madc.lo." + type, each_lane<Value3>([](U a, U b, U c, uint8_t flag) {
              return static_cast<U>(a * b + c + flag);
            }));
  table.add("madc.lo.cc." + type, each_lane<Flag3>([](U a, U b, U c, uint8_t flag) {
              return carry_of<U>(W{static_cast<U>(a * b)} + c + flag);
            }));
  table.add("madc.hi." + type, each_lane<Value3>([](U a, U b, U c, uint8_t flag) {
              return static_cast<U>(high_half(a, b) + c + flag);
            }));
  table.add("madc.hi.cc." + type, each_lane<Flag3>([](U a, U b, U c, uint8_t flag) {
              return carry_of<U>(W{high_half(a, b)} + c + flag);
            }));
}

// Any function of three bits: bit 4a + 2b + c of `function` is its value.
uint32_t function_of_bits(uint32_t a, uint32_t b, uint32_t c, uint32_t function) {
  const auto all = [&](uint32_t bit) { return 0 - ((function >> bit) & 1); };
  const auto choose = [](uint32_t by, uint32_t one, uint32_t zero) {
    return zero ^ ((one ^ zero) & by);
  };
  const uint32_t a0 = choose(b, choose(c, all(3), all(2)), choose(c, all(1), all(0)));
  const uint32_t a1 = choose(b, choose(c, all(7), all(6)), choose(c, all(5), all(4)));
  return choose(a, a1, a0);
}

// Each nibble of `selector` names one of the 8 bytes of b:a; its highest bit asks for copies of
// that byte's sign instead.
uint32_t permuted_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (uint32_t place = 0; place < 4; ++place) {
    const uint32_t nibble = (selector >> (4 * place)) & 15;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7))) & 255;
    if (nibble & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * place);
  }
  return result;
}

}  // namespace

void add_integer_operations(Operations& table) {
  add_arithmetic<uint16_t>(table, "u16");
  add_arithmetic<int16_t>(table, "s16");
  add_arithmetic<uint32_t>(table, "u32");
  add_arithmetic<int32_t>(table, "s32");
  add_arithmetic<uint64_t>(table, "u64");
  add_arithmetic<int64_t>(table, "s64");
  add_bits<uint16_t>(table, "b16");
  add_bits<uint32_t>(table, "b32");
  add_bits<uint64_t>(table, "b64");
  add_bit_fields<uint32_t>(table, "b32");
  add_bit_fields<uint64_t>(table, "b64");
  add_carries<uint32_t>(table, "u32");
  add_carries<uint64_t>(table, "u64");
  using F = uint32_t;
  table.add("lop3.b32", each_lane<F(F, F, F, F)>([](F a, F b, F c, F function) {
              return function_of_bits(a, b, c, function);
            }));
  table.add("prmt.b32", each_lane<F(F, F, F)>(
                            [](F a, F b, F selector) { return permuted_bytes(a, b, selector); }));
}

}  // namespace lockstep::ptx
