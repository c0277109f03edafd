// The library for matrices of simulated GPUs: plain loops, run when it is the stream's turn.
#pragma once

#include "engine/kernels/gpu_matrix_library.h"

namespace lockstep {

// Sums are added in f32, by ascending column. A shape that was not prepared, or more tokens than it
// was prepared for, is a failed CHECK.
Result<std::unique_ptr<GpuMatrixLibrary>> open_host_matrix_library(int gpu,
                                                                   std::span<std::byte> workspace);

// The libraries' next product but `count` is refused; so is what comes after it. Back to none:
// allow_library_products().
void refuse_library_products(size_t count);
void allow_library_products();

// How many have ended without having been abandoned, ever.
size_t closed_libraries();

}  // namespace lockstep
