#include "engine/base/result.h"

namespace lockstep {

int exit_code(const Error& error) {
  return error.kind == ErrorKind::kInvalidInput ? 2 : 1;
}

}  // namespace lockstep
