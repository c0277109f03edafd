#include "server/api/common/random.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "engine/base/check.h"

namespace lockstep {

uint64_t random_seed() {
  uint64_t seed = 0;
  CHECK(::getentropy(&seed, sizeof(seed)) == 0, "getentropy() failed with error {}", errno);
  return seed;
}

std::string random_id(std::string_view prefix) {
  return fmt::format("{}{:016x}{:016x}", prefix, random_seed(), random_seed());
}

}  // namespace lockstep
