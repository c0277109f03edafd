// Which row of the kernel table computes on this machine.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "engine/base/result.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {

// All rows, slowest first.
std::span<const KernelTable* const> all_kernel_tables();
bool machine_supports(const KernelTable& table);

// Whether what a row has beyond the one before it is faster than that on this processor.
bool machine_prefers(const KernelTable& table);

// The row called `name`, or the last that this machine supports and prefers if `name` is empty.
// Fails with kInvalidInput for an unknown name and for one this machine lacks (naming what it
// lacks).
Result<const KernelTable*> choose_kernel_table(std::string_view name);

// The MatmulArguments::panel_streams with which this processor reads fastest. Per core, in GB/s of
// weights in huge pages: on AMD's Zen 4 one stream reads Q4_0 at 25, Q4_K at 22, Q6_K at 19, two at
// 20, 20 and 13, since its prefetching follows one stream further (lockstep_kernel_benchmark).
// Intel's Granite Rapids was measured the other way round: two 19 to 20, one 15.
size_t preferred_panel_streams();

}  // namespace lockstep
