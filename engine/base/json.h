// nlohmann's JSON values, whose destruction and comparison with a text take no memory.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

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
