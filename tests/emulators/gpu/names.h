// The meaning of names at a place of a function: registers, and variables with their addresses. A
// call is decoded as if the function's text stood in its place, so each call has Names of its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "tests/emulators/gpu/draft.h"
#include "tests/emulators/gpu/syntax.h"

namespace lockstep::ptx {

// The values handed to a call, or back from one: by where they lie in the parameter.
using CallValues = std::map<int64_t, uint32_t>;

struct Place {
  std::string_view space;
  uint64_t address = 0;
  CallValues* values = nullptr;  // instead of an address
};

class Names {
 public:
  explicit Names(Draft& draft) : draft_(draft) { begin_scope(); }

  void begin_scope() { scopes_.emplace_back(); }
  void end_scope() { scopes_.pop_back(); }
  void declare(const Registers& group);
  void declare(std::string_view name, Place place) { scopes_.back().places[name] = place; }

  std::optional<uint32_t> find_register(std::string_view name) const;
  const Place* find_place(std::string_view name) const;

 private:
  struct Group {
    Registers registers;
    uint32_t first = 0;
  };
  struct Scope {
    std::vector<Group> groups;
    std::map<std::string_view, Place> places;
  };

  Draft& draft_;
  std::vector<Scope> scopes_;
};

}  // namespace lockstep::ptx
