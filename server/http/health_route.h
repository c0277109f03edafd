// The routes of health, which are open to whoever asks.
#pragma once

#include <string_view>

namespace lockstep {

// "/health" and what lies below it.
inline bool is_health_route(std::string_view route) {
  constexpr std::string_view kHealth = "/health";
  return route == kHealth || (route.starts_with(kHealth) && route[kHealth.size()] == '/');
}

}  // namespace lockstep
