#include "tests/emulators/gpu/names.h"

#include <algorithm>
#include <charconv>

namespace lockstep::ptx {

void Names::declare(const Registers& group) {
  Group added{.registers = group, .first = static_cast<uint32_t>(draft_.registers.size())};
  for (uint32_t i = 0; i < std::max(group.count, 1u); ++i) draft_.add_register(group.lane_bytes);
  scopes_.back().groups.push_back(added);
}

std::optional<uint32_t> Names::find_register(std::string_view name) const {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  const std::string_view start = name.substr(0, digits);
  uint32_t number = 0;
  std::from_chars(name.data() + digits, name.data() + name.size(), number);
  for (size_t i = scopes_.size(); i-- > 0;) {
    for (const Group& group : scopes_[i].groups) {
      if (group.registers.count == 0 && group.registers.name == name) return group.first;
      if (digits < name.size() && number < group.registers.count && group.registers.name == start) {
        return group.first + number;
      }
    }
  }
  return std::nullopt;
}

const Place* Names::find_place(std::string_view name) const {
  for (size_t i = scopes_.size(); i-- > 0;) {
    const auto found = scopes_[i].places.find(name);
    if (found != scopes_[i].places.end()) return &found->second;
  }
  return nullptr;
}

}  // namespace lockstep::ptx
