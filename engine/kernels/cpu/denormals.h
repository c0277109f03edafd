// Kernels that take numbers below the normal ones for zero, as operands and as results: the matrix
// unit does, and so must those that give its bits.
#pragma once

#include <immintrin.h>

#include "engine/kernels/kernel_table.h"

namespace lockstep {
namespace {

constexpr unsigned kFlushMode = 0x8000 | 0x0040;  // results and operands

// Calls a kernel in a mode of the calling thread's processor, and restores the one before. The
// kernel is not to be inlined: a compiler knows nothing of the mode, and could move its arithmetic
// out.
template <auto kKernel, typename Arguments>
void in_mode(unsigned mode, const Arguments& arguments) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(mode);
  kKernel(arguments);
  _mm_setcsr(before);
}

template <auto kKernel, typename Arguments>
void without_denormals(const Arguments& arguments) {
  in_mode<kKernel>(_mm_getcsr() | kFlushMode, arguments);
}

// Calls from such a kernel one that takes such numbers for what they are.
template <auto kKernel, typename Arguments>
void with_denormals(const Arguments& arguments) {
  in_mode<kKernel>(_mm_getcsr() & ~kFlushMode, arguments);
}

}  // namespace
}  // namespace lockstep
