// Predicates: made by comparisons, combined, chosen by. In a register each is a byte of 0 or 1.
#include <cmath>
#include <cstdint>
#include <string>

#include "tests/emulators/gpu/lane_loops.h"
#include "tests/emulators/gpu/operations.h"

namespace lockstep::ptx {
namespace {

template <typename T>
void add_order(Operations& table, const std::string& type) {
  using Test = bool(T, T);
  table.add("setp.lt." + type, each_lane<Test>([](T a, T b) { return a < b; }));
  table.add("setp.le." + type, each_lane<Test>([](T a, T b) { return a <= b; }));
  table.add("setp.gt." + type, each_lane<Test>([](T a, T b) { return a > b; }));
  table.add("setp.ge." + type, each_lane<Test>([](T a, T b) { return a >= b; }));
}

template <typename T>
void add_equality(Operations& table, const std::string& type) {
  using Test = bool(T, T);
  table.add("setp.eq." + type, each_lane<Test>([](T a, T b) { return a == b; }));
  table.add("setp.ne." + type, each_lane<Test>([](T a, T b) { return a != b; }));
}

// If an operand is no number, the plain tests are false and those with a u are true.
template <typename T>
void add_unordered(Operations& table, const std::string& type) {
  using Test = bool(T, T);
  table.add("setp.eq." + type, each_lane<Test>([](T a, T b) { return a == b; }));
  table.add("setp.ne." + type, each_lane<Test>([](T a, T b) { return (a < b) | (a > b); }));
  table.add("setp.equ." + type, each_lane<Test>([](T a, T b) { return !((a < b) | (a > b)); }));
  table.add("setp.neu." + type, each_lane<Test>([](T a, T b) { return a != b; }));
  table.add("setp.ltu." + type, each_lane<Test>([](T a, T b) { return !(a >= b); }));
  table.add("setp.leu." + type, each_lane<Test>([](T a, T b) { return !(a > b); }));
  table.add("setp.gtu." + type, each_lane<Test>([](T a, T b) { return !(a <= b); }));
  table.add("setp.geu." + type, each_lane<Test>([](T a, T b) { return !(a < b); }));
  table.add("setp.num." + type, each_lane<Test>([](T a, T b) { return (a == a) & (b == b); }));
  table.add("setp.nan." + type, each_lane<Test>([](T a, T b) { return (a != a) | (b != b); }));
}

template <typename U>
void add_choice(Operations& table, const std::string& bits) {
  const Operation choice = each_lane<U(U, U, uint8_t)>([](U a, U b, uint8_t first) {
    const U all = static_cast<U>(U{0} - first);
    return static_cast<U>(b ^ ((a ^ b) & all));
  });
  for (const char kind : {'b', 'u', 's', 'f'})
    table.add(std::string("selp.") + kind + bits, choice);
}

}  // namespace

void add_comparisons(Operations& table) {
  add_order<uint16_t>(table, "u16");
  add_order<int16_t>(table, "s16");
  add_order<uint32_t>(table, "u32");
  add_order<int32_t>(table, "s32");
  add_order<uint64_t>(table, "u64");
  add_order<int64_t>(table, "s64");
  add_order<float>(table, "f32");
  add_order<double>(table, "f64");
  for (const char* kind : {"b", "u", "s"}) {
    add_equality<uint16_t>(table, kind + std::string("16"));
    add_equality<uint32_t>(table, kind + std::string("32"));
    add_equality<uint64_t>(table, kind + std::string("64"));
  }
  add_unordered<float>(table, "f32");
  add_unordered<double>(table, "f64");
  add_choice<uint16_t>(table, "16");
  add_choice<uint32_t>(table, "32");
  add_choice<uint64_t>(table, "64");
  using Test = bool(bool, bool);
  table.add("and.pred", each_lane<Test>([](bool a, bool b) { return a & b; }));
  table.add("or.pred", each_lane<Test>([](bool a, bool b) { return a | b; }));
  table.add("xor.pred", each_lane<Test>([](bool a, bool b) { return a != b; }));
  table.add("not.pred", each_lane<bool(bool)>([](bool a) { return !a; }));
}

}  // namespace lockstep::ptx
