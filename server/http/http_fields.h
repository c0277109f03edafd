// The fields of a request's head, by name.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace lockstep {

// The first field of this name, or "".
inline std::string_view first_field(const std::multimap<std::string, std::string>& fields,
                                    std::string_view name) {
  const auto found = fields.lower_bound(std::string(name));
  return found != fields.end() && found->first == name ? std::string_view(found->second) : "";
}

}  // namespace lockstep
