// The loops of arithmetic_speed.h, one file per instruction set, each compiled for it: to be called
// only where the machine has it. Every accumulator is a chain of its own, and there are as many as
// hide an operation's latency.
#pragma once

#include <cstddef>

namespace lockstep {

inline constexpr size_t kVectorChains = 12;  // two per cycle, 4 to 6 cycles each
inline constexpr size_t kTileChains = 4;     // tiles of C, from 2 of A and 2 of B

void baseline_f32(size_t rounds);
void avx2_f32(size_t rounds);
void avx2_int8(size_t rounds);
void avx512_f32(size_t rounds);
void avx512_int8(size_t rounds);
void avx512_bf16(size_t rounds);
void amx_bf16(size_t rounds);
void amx_int8(size_t rounds);

}  // namespace lockstep
