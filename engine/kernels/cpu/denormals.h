// Kernels that take numbers below the normal ones for zero, as operands and as results: the matrix
// unit does, and so must those that give its bits.
#pragma once

#include <immintrin.h>

#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

// Calls a kernel in that mode of the calling thread's processor, and restores the mode. The kernel
// is not to be inlined: a compiler knows nothing of the mode, and could move its arithmetic out.
template <auto kKernel, typename Arguments>
void without_denormals(const Arguments& arguments) {
  constexpr unsigned kFlushResults = 0x8000;
  constexpr unsigned kFlushOperands = 0x0040;
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | kFlushResults | kFlushOperands);
  kKernel(arguments);
  _mm_setcsr(mode);
}

}  // namespace
}  // namespace lockstep
