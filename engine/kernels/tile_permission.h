// Whether this process may use AMX's tiles of bf16: a process must ask for that, as they make the
// state that is saved for a thread 8 KiB larger.
#pragma once

#include <string>

namespace lockstep {

struct TileSupport {
  bool tiles = false;  // the processor has amx-tile,
  bool bf16 = false;   // and amx-bf16
  std::string
      refusal;  // why the system does not let them be used, as far as it was asked; or empty
};

// Asked once per process: the permission, once given, holds for all of its threads.
const TileSupport& tile_support();

}  // namespace lockstep
