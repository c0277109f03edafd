#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/text_operations.h"

namespace lockstep::jinja {

namespace {

std::optional<int64_t> whole_part(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (std::isnan(value)) return std::nullopt;
  if (!(value > -kLimit - 1 && value < kLimit)) {
    fail("{} does not fit an integer of 64 bits", value);
  }
  return static_cast<int64_t>(value);
}

Value absolute(Heap&, BoundArguments& arguments) {
  const Value& self = arguments.self();
  if (self.is_float()) return Value(std::abs(self.floating()));
  if (!self.is_integral()) fail("bad operand type for abs(): {}", describe(self));
  return self.integral() < 0 ? negative(self) : Value(self.integral());
}

Value to_integer(Heap& heap, BoundArguments& arguments) {
  const Value& self = arguments.self();
  Value otherwise = arguments.has(0) ? arguments.value(0) : Value(int64_t{0});
  constexpr int64_t kDecimal = 10;
  require_defined(self);
  if (self.is_integral()) return Value(self.integral());
  if (self.is_float()) {
    const auto whole = whole_part(self.floating());
    return whole ? Value(*whole) : otherwise;
  }
  if (!self.is_string()) return otherwise;
  heap.step_bytes(self.text().size());
  if (const auto number = parse_integer(self.text(), arguments.integer(1, kDecimal))) {
    return Value(*number);
  }
  const auto number = parse_float(self.text());
  if (!number || !std::isfinite(*number)) return otherwise;
  return Value(*whole_part(*number));
}

Value to_float(Heap& heap, BoundArguments& arguments) {
  const Value& self = arguments.self();
  Value otherwise = arguments.has(0) ? arguments.value(0) : Value(0.0);
  require_defined(self);
  if (self.is_number()) return Value(self.floating());
  if (!self.is_string()) return otherwise;
  heap.step_bytes(self.text().size());
  const auto number = parse_float(self.text());
  return number ? Value(*number) : otherwise;
}

// To the nearest multiple of 10^places, ties to the even one.
int64_t round_integer(int64_t value, int64_t places) {
  constexpr int64_t kMostPlaces = 18;
  if (places > kMostPlaces) return 0;
  int64_t unit = 1;
  for (int64_t place = 0; place < places; ++place) unit *= 10;
  int64_t quotient = value / unit;
  const int64_t rest = std::abs(value % unit);
  if (rest > unit - rest || (rest == unit - rest && quotient % 2 != 0)) {
    quotient += value < 0 ? -1 : 1;
  }
  int64_t result = 0;
  if (__builtin_mul_overflow(quotient, unit, &result)) fail("integer overflow in round");
  return result;
}

double round_float(double value, int64_t precision) {
  constexpr int64_t kMost = 323;  // no double has more places
  if (!std::isfinite(value) || precision > kMost) return value;
  if (precision < -kMost) return std::copysign(0.0, value);
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / unit) * unit;
  }
  // The C library rounds the exact decimal value, ties to even, as Python does.
  std::string text(800, '\0');
  const int written =
      std::snprintf(text.data(), text.size(), "%.*f", static_cast<int>(precision), value);
  text.resize(static_cast<size_t>(written));
  return std::strtod(text.c_str(), nullptr);
}

Value round(Heap&, BoundArguments& arguments) {
  const Value& self = arguments.self();
  const int64_t precision = arguments.integer(0, 0);
  const std::string_view method = arguments.text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor") {
    fail("method must be common, ceil or floor, not '{}'", method);
  }
  require_defined(self);
  if (!self.is_number()) fail("type {} doesn't define __round__ method", type_name(self));
  if (method == "common") {
    if (self.is_float()) return Value(round_float(self.floating(), precision));
    return precision >= 0 ? Value(self.integral())
                          : Value(round_integer(self.integral(), -precision));
  }
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = self.floating() * unit;
  if (!std::isfinite(scaled)) fail("cannot round {} to an integer", scaled);
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

constexpr Native kFilters[] = {
    {"abs", absolute},
    {"float", to_float, 0, {"default"}},
    {"int", to_integer, 0, {"default", "base"}},
    {"round", round, 0, {"precision", "method"}},
};

}  // namespace

std::span<const Native> number_filters() {
  return kFilters;
}

}  // namespace lockstep::jinja
