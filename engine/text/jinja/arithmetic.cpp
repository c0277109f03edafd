#include <cmath>
#include <limits>

#include "engine/text/jinja/format.h"
#include "engine/text/jinja/operations.h"

namespace lockstep::jinja {

namespace {

std::string_view symbol(Operator operation) {
  switch (operation) {
    case Operator::kAdd:
      return "+";
    case Operator::kSubtract:
      return "-";
    case Operator::kMultiply:
      return "*";
    case Operator::kDivide:
      return "/";
    case Operator::kFloorDivide:
      return "//";
    case Operator::kModulo:
      return "%";
    default:
      return "**";
  }
}

[[noreturn]] void fail_overflow(Operator operation, int64_t left, int64_t right) {
  fail("integer overflow: {} {} {} does not fit 64 bits", left, symbol(operation), right);
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  int64_t factor = base;
  for (int64_t rest = exponent; rest > 0; rest >>= 1) {
    if ((rest & 1) != 0 && __builtin_mul_overflow(result, factor, &result)) {
      fail_overflow(Operator::kPower, base, exponent);
    }
    if (rest > 1 && __builtin_mul_overflow(factor, factor, &factor)) {
      fail_overflow(Operator::kPower, base, exponent);
    }
  }
  return result;
}

// Rounds towards minus infinity; the remainder has the divisor's sign.
int64_t floor_quotient(int64_t left, int64_t right) {
  const int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

double floor_remainder(double left, double right) {
  const double remainder = std::fmod(left, right);
  if (remainder == 0) return std::copysign(0.0, right);
  return (right < 0) != (remainder < 0) ? remainder + right : remainder;
}

double floor_quotient(double left, double right) {
  const double quotient = (left - floor_remainder(left, right)) / right;
  if (quotient == 0) return std::copysign(0.0, left / right);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double power(double base, double exponent) {
  if (base == 0 && exponent < 0) fail("0.0 cannot be raised to a negative power");
  const double result = std::pow(base, exponent);
  if (std::isnan(result) && !std::isnan(base) && !std::isnan(exponent)) {
    fail("complex numbers are not supported: {} ** {}", base, exponent);
  }
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) {
    fail("numerical result out of range: {} ** {}", base, exponent);
  }
  return result;
}

Value of_floats(Operator operation, double left, double right) {
  const bool divides = operation == Operator::kDivide || operation == Operator::kFloorDivide ||
                       operation == Operator::kModulo;
  if (divides && right == 0) fail("division by zero: {} {} 0", left, symbol(operation));
  switch (operation) {
    case Operator::kAdd:
      return Value(left + right);
    case Operator::kSubtract:
      return Value(left - right);
    case Operator::kMultiply:
      return Value(left * right);
    case Operator::kDivide:
      return Value(left / right);
    case Operator::kFloorDivide:
      return Value(floor_quotient(left, right));
    case Operator::kModulo:
      return Value(floor_remainder(left, right));
    default:
      return Value(power(left, right));
  }
}

Value of_integers(Operator operation, int64_t left, int64_t right) {
  int64_t result = 0;
  bool overflow = false;
  switch (operation) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(left, right, &result);
      break;
    case Operator::kSubtract:
      overflow = __builtin_sub_overflow(left, right, &result);
      break;
    case Operator::kMultiply:
      overflow = __builtin_mul_overflow(left, right, &result);
      break;
    case Operator::kPower:
      if (right < 0) {
        return of_floats(operation, static_cast<double>(left), static_cast<double>(right));
      }
      return Value(integer_power(left, right));
    default:
      if (right == 0) fail("division by zero: {} {} 0", left, symbol(operation));
      if (operation == Operator::kDivide) {
        return Value(
            static_cast<double>(static_cast<long double>(left) / static_cast<long double>(right)));
      }
      if (right == -1) {  // the one division that can overflow
        if (operation == Operator::kModulo) return Value(int64_t{0});
        overflow = __builtin_sub_overflow(int64_t{0}, left, &result);
      } else if (operation == Operator::kFloorDivide) {
        result = floor_quotient(left, right);
      } else {
        result = left - floor_quotient(left, right) * right;
      }
  }
  if (overflow) fail_overflow(operation, left, right);
  return Value(result);
}

Value concatenate(Heap& heap, const Value& left, const Value& right) {
  // A result of the escape and safe filters stays safe: the other side is escaped.
  const bool markup = left.is_markup() || right.is_markup();
  const auto part = [&](const Value& value) {
    return markup && !value.is_markup() ? escape_markup(heap, value.traced()) : TracedText();
  };
  const TracedText escaped_left = part(left);
  const TracedText escaped_right = part(right);
  const TracedText& first = markup && !left.is_markup() ? escaped_left : left.traced();
  const TracedText& second = markup && !right.is_markup() ? escaped_right : right.traced();
  const size_t bytes = first.text.size() + second.text.size();
  heap.step_bytes(bytes);
  heap.reserve(bytes + (first.foreign.size() + second.foreign.size()) * sizeof(TextRange));
  TracedText joined;
  joined.text.reserve(bytes);
  joined.append(first);
  joined.append(second);
  return make_string(heap, std::move(joined), markup);
}

Value concatenate(Heap& heap, const ListData& left, const ListData& right) {
  const size_t count = left.items.size() + right.items.size();
  heap.step(count / 4);
  heap.reserve(count * sizeof(Value));
  std::vector<Value> items;
  items.reserve(count);
  items.insert(items.end(), left.items.begin(), left.items.end());
  items.insert(items.end(), right.items.begin(), right.items.end());
  return left.tuple ? make_tuple(heap, std::move(items)) : make_list(heap, std::move(items));
}

// How many units `count` repetitions of `size` make, within the memory budget.
uint64_t repeated(Heap& heap, uint64_t size, int64_t count, uint64_t unit_bytes) {
  if (count <= 0 || size == 0) return 0;
  uint64_t total = 0;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(size, static_cast<uint64_t>(count), &total) ||
      __builtin_mul_overflow(total, unit_bytes, &bytes)) {
    bytes = std::numeric_limits<uint64_t>::max();
  }
  heap.reserve(bytes);
  heap.step_bytes(bytes);
  return total;
}

Value repeat(Heap& heap, const Value& value, int64_t count) {
  if (value.is_string()) {
    const TracedText& text = value.traced();
    // As many bytes as the ranges of a text take are counted with it.
    const uint64_t unit_bytes =
        text.text.empty() ? 1 : 1 + text.foreign.size() * sizeof(TextRange) / text.text.size();
    const uint64_t bytes = repeated(heap, text.text.size(), count, unit_bytes);
    TracedText result;
    result.text.reserve(bytes);
    while (result.text.size() < bytes) result.append(text);
    return make_string(heap, std::move(result), value.is_markup());
  }
  const ListData& list = *value.sequence();
  const uint64_t total = repeated(heap, list.items.size(), count, sizeof(Value));
  std::vector<Value> items;
  items.reserve(total);
  while (items.size() < total) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return list.tuple ? make_tuple(heap, std::move(items)) : make_list(heap, std::move(items));
}

bool is_repeatable(const Value& value) {
  return value.is_string() || value.sequence() != nullptr;
}

}  // namespace

Value arithmetic(Heap& heap, Operator operation, const Value& left, const Value& right) {
  heap.step();
  if (operation == Operator::kModulo && left.is_string()) {
    return format_percent(heap, left, right);
  }
  if (left.is_integral() && right.is_integral()) {
    return of_integers(operation, left.integral(), right.integral());
  }
  if (left.is_number() && right.is_number()) {
    return of_floats(operation, left.floating(), right.floating());
  }
  require_defined(left);
  require_defined(right);
  if (operation == Operator::kAdd) {
    if (left.is_string() && right.is_string()) return concatenate(heap, left, right);
    const ListData* first = left.sequence();
    const ListData* second = right.sequence();
    if (first != nullptr && second != nullptr && first->tuple == second->tuple) {
      return concatenate(heap, *first, *second);
    }
    if (left.is_string()) {
      fail("can only concatenate str (not \"{}\") to str", type_name(right));
    }
  }
  if (operation == Operator::kMultiply) {
    if (is_repeatable(left) && right.is_integral()) return repeat(heap, left, right.integral());
    if (is_repeatable(right) && left.is_integral()) return repeat(heap, right, left.integral());
  }
  fail("unsupported operand type(s) for {}: '{}' and '{}'", symbol(operation), type_name(left),
       type_name(right));
}

Value negative(const Value& value) {
  if (value.is_float()) return Value(-value.floating());
  if (value.is_integral()) return of_integers(Operator::kSubtract, 0, value.integral());
  require_defined(value);
  fail("bad operand type for unary -: '{}'", type_name(value));
}

Value positive(const Value& value) {
  if (value.is_float()) return value;
  if (value.is_integral()) return Value(value.integral());
  require_defined(value);
  fail("bad operand type for unary +: '{}'", type_name(value));
}

}  // namespace lockstep::jinja
