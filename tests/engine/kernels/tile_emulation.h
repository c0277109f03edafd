// AMX's tile instructions in tests, on machines with AMX and without: what is compiled for it runs
// as it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/tile_instruction.h"

namespace lockstep {

// While it exists, all threads of this process can run tile instructions: on the processor, or,
// where it has none, on simulated tiles. There every such instruction is an illegal one,
// whose signal (SIGILL) is handled by computing it; an instruction that is wrong by Intel's manual
// ends the process with the signal that it would get on a processor with AMX and a line that says
// why, and any other illegal instruction is left to the handler that was there before. One at a
// time. Tells nothing of the speed of AMX.
class TileEmulation {
 public:
  TileEmulation();
  ~TileEmulation();
  TileEmulation(const TileEmulation&) = delete;
  TileEmulation& operator=(const TileEmulation&) = delete;

  // Why this machine runs no tile instructions even so, or empty.
  const std::string& obstacle() const { return obstacle_; }
  // Whether instructions are computed here rather than by the processor.
  bool is_active() const { return active_; }
  // Instructions computed since construction, of all threads.
  uint64_t count(TileOperation operation) const;

 private:
  std::string obstacle_;
  bool active_ = false;
};

// Whether this machine runs what the row amx computes without tiles.
bool has_vectors_of_amx();
// Whether this machine runs a row of the kernel table, its tile instructions with the help of a
// TileEmulation.
bool runs_here(const KernelTable& table);
// All such.
std::vector<const KernelTable*> tables_that_run_here();

}  // namespace lockstep
