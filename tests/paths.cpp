#include "tests/paths.h"

#include <cstdlib>

namespace lockstep {
std::string source_dir() {
  // A test that was built elsewhere is told by its environment.
  const char* const given = std::getenv("LOCKSTEP_SOURCE_DIR");
  return given == nullptr ? LOCKSTEP_SOURCE_DIR : given;
}

}  // namespace lockstep
