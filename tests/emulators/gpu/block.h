// One block of a launch: its threads, its shared memory, and where each of them is.
//
// Threads run in warps of 32. Lanes of a warp that part at a branch run on their own; the lanes
// that are furthest behind in the text run first, so they meet again where the paths do. What a GPU
// would leave undefined ends the block with a failure instead: an access outside every allocation,
// or not aligned to its size; shared or local memory that nobody has written; a barrier or an
// exchange between lanes that not all of them reach.
//
// Global memory is read and written at once; those accesses that order others (acquire, release,
// atom) are atomic on the host with that order, so blocks may run side by side on several threads.
// cp.async copies at the wait that covers it, not earlier: until then its target counts as
// unwritten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulators/gpu/memory.h"
#include "tests/emulators/gpu/module.h"

namespace lockstep::ptx {

struct Size3 {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
};

struct Launch {
  const Kernel* kernel = nullptr;
  std::vector<std::byte> parameters;  // kernel->parameter_bytes() of them
  Size3 grid;
  Size3 block;
  uint32_t dynamic_shared_bytes = 0;
  // Whether it is a failure to read shared memory that nobody has written. If not, what is read may
  // be anything (the seed says what, often no number), and the outcome must not depend on it.
  bool refuses_unwritten_shared = false;
  // Whether it is a failure when two warps touch the same byte of shared memory without a barrier
  // between them and one writes it: whatever the order in which they come. Takes its time.
  bool refuses_shared_races = false;
};

enum class BlockState {
  kGoesOn,          // it has run as many instructions as was asked
  kWaitsForLaunch,  // its live threads are at griddepcontrol.wait, or at a barrier with those
  kRests,           // every warp that could run has called nanosleep: others may run first
  kDone,
  kFailed,
};

// The kind of a failure, as a GPU would report it.
enum class Fault {
  kMisaligned,
  kNoMemory,  // an address in no allocation (or in none of shared or local memory)
  kOther,     // what a GPU leaves undefined, or would wait for for ever
};

class Block {
 public:
  // `launch` and `memory` outlive the block. The seed says in which order warps run, for how long
  // at a time, and what registers and shared memory hold before anything was written to them.
  Block(const Launch& launch, Size3 index, Memory& memory, uint64_t seed);
  Block(Block&&) noexcept;
  Block& operator=(Block&&) noexcept;
  ~Block();

  // Runs about so many instructions (each is one of a warp). griddepcontrol.wait returns when
  // `launch_before_is_done`. From one thread at a time.
  BlockState run(uint64_t warp_instructions, bool launch_before_is_done);

  // A thread has called griddepcontrol.launch_dependents, or all have ended: as far as this block
  // is concerned the launch after its own may begin.
  bool lets_next_begin() const;

  uint64_t warp_instructions() const;  // run so far
  // After kFailed: the kernel, the line and instruction of PTX, thread, address.
  const std::string& failure() const;
  Fault fault() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::ptx
