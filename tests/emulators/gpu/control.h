// Branches, ends, barriers, and what lanes exchange.
#pragma once

#include "tests/emulators/gpu/program.h"

namespace lockstep::ptx {

// The immediate is the target.
void branch(Warp& warp, const Instruction& instruction);
// Read: a predicate. Taken by the lanes where it holds, or where it does not.
void branch_if(Warp& warp, const Instruction& instruction);
void branch_unless(Warp& warp, const Instruction& instruction);
void end_thread(Warp& warp, const Instruction& instruction);

void block_barrier(Warp& warp, const Instruction& instruction);  // bar.sync 0
void warp_barrier(Warp& warp, const Instruction& instruction);   // read: the mask

void wait_for_launch(Warp& warp, const Instruction& instruction);
void launch_dependents(Warp& warp, const Instruction& instruction);
void rest(Warp& warp, const Instruction& instruction);        // nanosleep
void read_timer(Warp& warp, const Instruction& instruction);  // %globaltimer, in nanoseconds

// shfl.sync: written: value, whether its source is in range; read: value, which lane, its bounds,
// the mask.
enum class Shuffle : uint8_t { kUp, kDown, kButterfly, kIndex };
template <Shuffle kShuffle>
void shuffle(Warp& warp, const Instruction& instruction);
void ballot(Warp& warp, const Instruction& instruction);        // read: predicate, mask
void sum_of_lanes(Warp& warp, const Instruction& instruction);  // read: value, mask

// mma.m16n8k16: written: 4 of the sum; read: 4 of A, 2 of B, 4 of C.
void multiply_bf16(Warp& warp, const Instruction& instruction);
void multiply_f16(Warp& warp, const Instruction& instruction);
// wgmma.m64k16 of 8 * kGroups columns of B: written: 4 of the sum for each group; read: these
// (kAdds), 4 of A, B's descriptor.
template <uint32_t kGroups, bool kAdds>
void multiply_group(Warp& warp, const Instruction& instruction);
// Its fence, commit_group and wait_group: all lanes take part.
void meet_for_products(Warp& warp, const Instruction& instruction);

}  // namespace lockstep::ptx
