// The program's log: spdlog's default logger. Messages are whole sentences that carry the values.
#pragma once

#include <spdlog/spdlog.h>

#include "engine/base/format.h"

namespace lockstep {

// Logs where nothing may be thrown. Calls `write`, which logs something or tells it elsewhere. A
// line for which there is no memory is left out.
template <typename Write>
void log_surely(const Write& write) {
  try {
    write();
  } catch (...) {
    return;
  }
}

}  // namespace lockstep
