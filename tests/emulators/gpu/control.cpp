#include "tests/emulators/gpu/control.h"

#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <cstdint>

#include "tests/emulators/gpu/block_shared.h"
#include "tests/emulators/gpu/warp.h"

namespace lockstep::ptx {
namespace {

uint32_t lowest(uint32_t lanes) {
  return static_cast<uint32_t>(std::countr_zero(lanes));
}

// The lanes where `taken` go on at the instruction's target.
void take(Warp& warp, uint32_t taken, const Instruction& instruction) {
  const auto target = static_cast<uint32_t>(instruction.immediate);
  taken &= warp.active();
  if (taken == warp.active()) {
    warp.jump(target);
  } else if (taken != 0) {
    warp.split(taken, target);
  }
}

// Whether all lanes of the mask, the same in all of them, are here. If not, they wait or it fails.
bool meets(Warp& warp, const Instruction& instruction, uint32_t mask_register, uint32_t& mask) {
  const uint32_t* const masks = warp.lanes<const uint32_t>(mask_register);
  mask = masks[lowest(warp.active())];
  uint32_t others = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    others |= masks[lane] != mask ? uint32_t{1} << lane : 0;
  }
  others &= warp.active();
  if (others != 0) {
    const uint32_t lane = lowest(others);
    warp.fail(instruction, lane,
              fmt::format("its mask is {:#010x}, another lane's {:#010x}", masks[lane], mask));
    return false;
  }
  return warp.gathered(mask, instruction);
}

// A lane takes the value of one that is not in its mask.
void fail_strange_source(Warp& warp, const Instruction& instruction, uint32_t mask,
                         const uint32_t* sources) {
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!((warp.active() >> lane) & 1) || ((mask >> sources[lane]) & 1)) continue;
    warp.fail(instruction, lane,
              fmt::format("takes the value of lane {}, which is not in its mask", sources[lane]));
  }
}

}  // namespace

void branch(Warp& warp, const Instruction& instruction) {
  warp.jump(static_cast<uint32_t>(instruction.immediate));
}

void branch_if(Warp& warp, const Instruction& instruction) {
  take(warp, warp.bits(instruction.registers[0]), instruction);
}

void branch_unless(Warp& warp, const Instruction& instruction) {
  take(warp, ~warp.bits(instruction.registers[0]), instruction);
}

void end_thread(Warp& warp, const Instruction&) {
  warp.end_lanes();
}

void block_barrier(Warp& warp, const Instruction& instruction) {
  if (warp.gathered(warp.live(), instruction)) warp.stop(WarpState::kAtBarrier);
}

void warp_barrier(Warp& warp, const Instruction& instruction) {
  uint32_t mask = 0;
  meets(warp, instruction, instruction.registers[0], mask);
}

void wait_for_launch(Warp& warp, const Instruction&) {
  if (!warp.block().launch_before_is_done) warp.wait_for_launch();
}

void launch_dependents(Warp& warp, const Instruction&) {
  warp.block().lets_next_begin = true;
}

void rest(Warp& warp, const Instruction&) {
  warp.stop(WarpState::kRests);
}

void read_timer(Warp& warp, const Instruction& instruction) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto nanoseconds =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  uint64_t* const to = warp.lanes<uint64_t>(instruction.registers[0]);
  for (uint32_t lane = 0; lane < kLanes; ++lane) to[lane] = nanoseconds;
}

// PTX ISA, "shfl.sync": c holds in bits 0-4 the furthest lane within a segment, in bits 8-12 which
// bits of a lane's number name its segment.
template <Shuffle kShuffle>
void shuffle(Warp& warp, const Instruction& instruction) {
  uint32_t mask = 0;
  if (!meets(warp, instruction, instruction.registers[5], mask)) return;
  const uint32_t* const from = warp.lanes<const uint32_t>(instruction.registers[2]);
  const uint32_t* const which = warp.lanes<const uint32_t>(instruction.registers[3]);
  const uint32_t* const bounds = warp.lanes<const uint32_t>(instruction.registers[4]);
  const uint32_t active = warp.active();
  alignas(64) uint32_t sources[kLanes];
  alignas(64) uint32_t values[kLanes];
  alignas(32) bool in_range[kLanes];
  uint32_t strangers = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t by = which[lane] & 31;
    const uint32_t segment = (bounds[lane] >> 8) & 31;
    const uint32_t first = lane & segment;
    const uint32_t furthest = first | (bounds[lane] & 31 & ~segment);
    uint32_t source = 0;
    if constexpr (kShuffle == Shuffle::kUp) source = lane - by;
    if constexpr (kShuffle == Shuffle::kDown) source = lane + by;
    if constexpr (kShuffle == Shuffle::kButterfly) source = lane ^ by;
    if constexpr (kShuffle == Shuffle::kIndex) source = first | (by & ~segment);
    const auto its = static_cast<int32_t>(source);
    const auto bound = static_cast<int32_t>(furthest);
    const bool inside = kShuffle == Shuffle::kUp ? its >= bound : its <= bound;
    sources[lane] = (inside ? source : lane) & 31;
    in_range[lane] = inside;
    strangers |= ((active >> lane) & ~(mask >> sources[lane])) & 1;
  }
  if (strangers != 0) return fail_strange_source(warp, instruction, mask, sources);
  for (uint32_t lane = 0; lane < kLanes; ++lane) values[lane] = from[sources[lane]];
  uint32_t* const to = warp.lanes<uint32_t>(instruction.registers[0]);
  bool* const to_range = warp.lanes<bool>(instruction.registers[1]);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    to[lane] = (active >> lane) & 1 ? values[lane] : to[lane];
  }
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    to_range[lane] = (active >> lane) & 1 ? in_range[lane] : to_range[lane];
  }
}
template void shuffle<Shuffle::kUp>(Warp&, const Instruction&);
template void shuffle<Shuffle::kDown>(Warp&, const Instruction&);
template void shuffle<Shuffle::kButterfly>(Warp&, const Instruction&);
template void shuffle<Shuffle::kIndex>(Warp&, const Instruction&);

namespace {

void give_all(Warp& warp, uint32_t place, uint32_t value) {
  uint32_t* const to = warp.lanes<uint32_t>(place);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    to[lane] = (warp.active() >> lane) & 1 ? value : to[lane];
  }
}

}  // namespace

void ballot(Warp& warp, const Instruction& instruction) {
  uint32_t mask = 0;
  if (!meets(warp, instruction, instruction.registers[2], mask)) return;
  give_all(warp, instruction.registers[0], warp.bits(instruction.registers[1]) & mask);
}

void sum_of_lanes(Warp& warp, const Instruction& instruction) {
  uint32_t mask = 0;
  if (!meets(warp, instruction, instruction.registers[2], mask)) return;
  const uint32_t* const from = warp.lanes<const uint32_t>(instruction.registers[1]);
  uint32_t sum = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) sum += (mask >> lane) & 1 ? from[lane] : 0;
  give_all(warp, instruction.registers[0], sum);
}

}  // namespace lockstep::ptx
