#include <cctype>
#include <cmath>
#include <cstdio>

#include "engine/text/jinja/format.h"

namespace lockstep::jinja {

namespace {

// More digits than any number has; bounds what one conversion may write.
constexpr int kPrecisionMost = 1000;

std::string print_float(char type, int precision, bool alternate, double value) {
  if (precision > kPrecisionMost) {
    fail("a precision of {} is too big, the most is {}", precision, kPrecisionMost);
  }
  const std::string pattern = fmt::format("%{}.*{}", alternate ? "#" : "", type);
  std::string text(400 + kPrecisionMost, '\0');
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const int written = std::snprintf(text.data(), text.size(), pattern.c_str(), precision, value);
#pragma GCC diagnostic pop
  text.resize(static_cast<size_t>(written));
  return text;
}

std::string group_digits(const std::string& digits, char separator, size_t group) {
  size_t whole = 0;
  while (whole < digits.size() && std::isxdigit(static_cast<unsigned char>(digits[whole])) != 0) {
    ++whole;
  }
  std::string grouped;
  for (size_t index = 0; index < whole; ++index) {
    if (index > 0 && (whole - index) % group == 0) grouped += separator;
    grouped += digits[index];
  }
  return grouped + digits.substr(whole);
}

std::string sign_text(bool is_negative, char sign) {
  if (is_negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

}  // namespace

NumberText format_integer(int64_t value, const NumberFormat& format) {
  const uint64_t magnitude =
      value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  NumberText text{sign_text(value < 0, format.sign), {}};
  size_t group = 4;
  std::string_view prefix;
  switch (format.type) {
    case 'b':
      text.digits = fmt::format("{:b}", magnitude);
      prefix = "0b";
      break;
    case 'o':
      text.digits = fmt::format("{:o}", magnitude);
      prefix = "0o";
      break;
    case 'x':
      text.digits = fmt::format("{:x}", magnitude);
      prefix = "0x";
      break;
    case 'X':
      text.digits = fmt::format("{:X}", magnitude);
      prefix = "0X";
      break;
    default:
      text.digits = fmt::to_string(magnitude);
      group = 3;
  }
  if (format.alternate) text.sign += prefix;
  if (format.thousands != 0) text.digits = group_digits(text.digits, format.thousands, group);
  return text;
}

NumberText format_float(double value, const NumberFormat& format) {
  const bool is_negative = std::signbit(value) && !std::isnan(value);
  const double magnitude = std::abs(value);
  NumberText text{sign_text(is_negative, format.sign), {}};
  constexpr int kUsual = 6;
  const int precision = format.precision < 0 ? kUsual : format.precision;
  if (format.type == 0) {
    if (format.precision < 0) {
      text.digits = float_text(magnitude);
    } else {
      text.digits = print_float('g', std::max(format.precision, 1), false, magnitude);
      if (text.digits.find_first_of(".en") == std::string::npos) text.digits += ".0";
    }
  } else if (format.type == '%') {
    text.digits = print_float('f', precision, format.alternate, magnitude * 100) + "%";
  } else {
    const bool general = format.type == 'g' || format.type == 'G';
    text.digits = print_float(format.type, general ? std::max(precision, 1) : precision,
                              format.alternate, magnitude);
  }
  if (format.thousands != 0) text.digits = group_digits(text.digits, format.thousands, 3);
  return text;
}

}  // namespace lockstep::jinja
