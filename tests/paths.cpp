#include "tests/paths.h"

namespace lockstep {

std::string source_dir() {
  return LOCKSTEP_SOURCE_DIR;
}

std::string test_data_dir() {
  return LOCKSTEP_TEST_DATA;
}

}  // namespace lockstep
