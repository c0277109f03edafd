#include "engine/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace lockstep {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: bug: %s does not hold: %s\n", file, line, condition,
               message.c_str());
  std::abort();
}

}  // namespace lockstep
