// Random numbers of the operating system, for seeds and names. Any thread.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/check.h"

namespace lockstep {

// A seed for a request that gives none.
inline uint64_t random_seed() {
  uint64_t seed = 0;
  CHECK(::getentropy(&seed, sizeof(seed)) == 0, "getentropy() failed with error {}", errno);
  return seed;
}

// The prefix and 32 random hexadecimal digits: "cmpl-0123…".
inline std::string random_id(std::string_view prefix) {
  return fmt::format("{}{:016x}{:016x}", prefix, random_seed(), random_seed());
}

}  // namespace lockstep
