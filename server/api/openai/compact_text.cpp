#include "server/api/openai/compact_text.h"

#include <charconv>
#include <utility>

namespace lockstep {
namespace {

void append_number(double number, std::string& text) {
  constexpr size_t kDigitsMax = 32;  // -1.7976931348623157e+308 has 24
  char digits[kDigitsMax];
  const auto [end, error] = std::to_chars(digits, digits + kDigitsMax, number);
  text.append(digits, end);
}

}  // namespace

void append_compact_text(const Json& value, std::string& text) {
  if (value.is_object()) {
    text += '{';
    bool first = true;
    for (const auto& [name, member] : value.items()) {
      if (!std::exchange(first, false)) text += ',';
      text += to_text(Json(name));
      text += ':';
      append_compact_text(member, text);
    }
    text += '}';
  } else if (value.is_array()) {
    text += '[';
    for (const Json& element : value) {
      if (&element != &value.front()) text += ',';
      append_compact_text(element, text);
    }
    text += ']';
  } else if (value.is_number_float()) {
    append_number(value.get<double>(), text);
  } else {
    text += to_text(value);
  }
}

}  // namespace lockstep
