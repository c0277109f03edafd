// The rows of the kernel table, and what is put into one: one function per file of an instruction
// set, and nothing else, is seen from outside that file. Each returns a constant and may be called
// on any machine.
#pragma once

#include "engine/kernels/kernel_table.h"

namespace lockstep {

const KernelTable& scalar_kernel_table();
const KernelTable& avx2_kernel_table();
const KernelTable& avx512_kernel_table();
const KernelTable& amx_kernel_table();
// What AVX-512 with bf16 dot products has of its own.
MatmulKernel avx512bf16_dots_kernel();

}  // namespace lockstep
