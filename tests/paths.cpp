#include "tests/paths.h"

#include <cstdlib>

namespace lockstep {
namespace {

// A test that was built elsewhere is told by its environment.
std::string told(const char* variable, const char* built_in) {
  const char* const given = std::getenv(variable);
  return given == nullptr ? built_in : given;
}

}  // namespace

std::string kernel_row() {
  return told("LOCKSTEP_ISA", "");
}

std::string source_dir() {
  return told("LOCKSTEP_SOURCE_DIR", LOCKSTEP_SOURCE_DIR);
}

}  // namespace lockstep
