// The effect of AMX's instructions on the tiles of a thread and on memory, by Intel's manual
// (volume 2: LDTILECFG, TILELOADD, TDPBF16PS ... and their exception classes).
#pragma once

#include "tests/engine/kernels/tile_instruction.h"

namespace lockstep {

// Why the processor refuses an instruction: the signal that Linux makes of its exception (SIGILL of
// #UD, SIGSEGV of #GP), or 0.
struct TileFault {
  int signal = 0;
  const char* reason = nullptr;
};

// On the calling thread's tiles, which are without a configuration until it loads one. Only for
// machines with AVX-512. May be called by a signal handler.
TileFault execute_tile_instruction(const TileInstruction& instruction);

}  // namespace lockstep
