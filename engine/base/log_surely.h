// Logging where nothing may be thrown.
#pragma once

namespace lockstep {

// Calls `write`, which logs something or tells it elsewhere. A line for which there is no memory is
// left out.
template <typename Write>
void log_surely(const Write& write) {
  try {
    write();
  } catch (...) {
    return;
  }
}

}  // namespace lockstep
