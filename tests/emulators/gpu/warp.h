// 32 lanes and where each of them is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/emulators/gpu/async_copies.h"
#include "tests/emulators/gpu/block.h"
#include "tests/emulators/gpu/program.h"

namespace lockstep::ptx {

struct BlockShared;  // block_shared.h: what a block's warps share

enum class LaneWait : uint8_t { kNone, kOthers, kLaunch };

// Some lanes of a warp that are at one place, but do not run now.
struct LaneGroup {
  uint32_t lanes = 0;
  uint32_t at = 0;  // index of the instruction
  LaneWait wait = LaneWait::kNone;
};

enum class WarpState : uint8_t { kReady, kAtBarrier, kWaitsForLaunch, kRests, kDone, kFailed };

class Warp {
 public:
  // `lanes`: those that there are.
  Warp(BlockShared& block, uint32_t index, uint32_t lanes, std::byte* registers);

  // Runs until its state is another than kReady, or about so many instructions; how many it ran.
  uint64_t run(uint64_t instructions);

  // For those who run blocks: go on after a barrier, a rest, or the launch before.
  void go_on();

  WarpState state() const { return state_; }
  uint32_t index() const { return index_; }
  uint32_t at() const { return at_; }  // the instruction that runs, or that it waits at

  // For handlers.
  BlockShared& block() { return block_; }
  uint32_t active() const { return active_; }
  uint32_t live() const { return live_; }
  template <typename T>
  T* lanes(uint32_t place) {
    return static_cast<T*>(__builtin_assume_aligned(registers_ + place, kLanes));
  }
  AsyncCopies& copies() { return copies_; }
  // A predicate's lanes as bits.
  uint32_t bits(uint32_t place);

  void jump(uint32_t target) { at_ = target; }
  // Those lanes of the active ones go on at `target`.
  void split(uint32_t lanes, uint32_t target);
  // The active lanes end.
  void end_lanes();
  // True where all of `wanted` are active. Otherwise the active ones wait at this instruction,
  // which runs again when others have come, or fail where those cannot come any more.
  bool gathered(uint32_t wanted, const Instruction& instruction);
  // The active lanes wait at this instruction for the launch before.
  void wait_for_launch();
  // The warp as a whole stops behind this instruction.
  void stop(WarpState state);

  // The block ends; `lane` is the one that does what must not be.
  void fail(const Instruction& instruction, uint32_t lane, const std::string& what,
            Fault fault = Fault::kOther);

 private:
  void run_masked(const Instruction& instruction);
  void regroup();
  void all_wait();
  void park(LaneWait wait);

  BlockShared& block_;
  std::byte* registers_;
  uint32_t index_;
  uint32_t live_;
  uint32_t active_;
  uint32_t at_ = 0;
  bool interrupted_ = false;  // not to go on with the next instruction without a look at the state
  WarpState state_ = WarpState::kReady;
  std::vector<LaneGroup> groups_;
  AsyncCopies copies_;
};

}  // namespace lockstep::ptx
