// JSON values, whose destruction and comparison with a text take no memory; JSON text from outside
// to a value, strictly and within bounds, and a value to text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/base/result.h"

// The library moves the members of a dying array or object to a stack on the heap, so that depth is
// no recursion; where there is no memory for that stack, the process ends, since a destructor
// throws nothing. What parse_json() reads has a bounded depth, and so has everything that is made
// here: a value's own destructors may recurse. Every user of the type has to see this before it is
// used.
template <>
inline void nlohmann::ordered_json::json_value::destroy(value_t type) {
  const auto free = [](auto* value) {
    using Value = std::remove_pointer_t<decltype(value)>;
    std::destroy_at(value);
    std::allocator<Value>().deallocate(value, 1);
  };
  switch (type) {
    case value_t::object:
      return free(object);
    case value_t::array:
      return free(array);
    case value_t::string:
      return free(string);
    case value_t::binary:
      return free(binary);
    default:
      return;
  }
}

namespace nlohmann {

// The library's makes a value of the text, in a function that must not throw.
inline bool operator==(const ordered_json& value, const char* text) noexcept {
  const auto* own = value.get_ptr<const std::string*>();
  return own != nullptr && *own == text;
}

}  // namespace nlohmann

namespace lockstep {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  size_t depth = 64;        // arrays and objects inside one another
  size_t values = 1 << 20;  // members, elements and containers together
  bool comments = false;    // whether /* */ and // are allowed
};

// Parses the whole of `text`. Fails with kInvalidInput, naming the byte, for anything but one JSON
// value (RFC 8259) in valid UTF-8, for an object with a name twice, and beyond the limits. Takes
// time that grows with the text's length alone.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

// The value in one line. Strings that are not valid UTF-8 come out with U+FFFD; never throws.
std::string to_text(const Json& value);
// The same in many lines, for people.
std::string to_indented_text(const Json& value);

// "a string", "an integer", "a number", "a boolean", "null", "an array", "an object": for messages.
std::string_view kind_name(const Json& value);

}  // namespace lockstep
