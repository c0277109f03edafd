// Which row of the kernel table computes on this machine.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {

// Whether this process may use AMX's tiles of bf16: a process must ask for that, as they make the
// state that is saved for a thread 8 KiB larger.
struct TileSupport {
  bool tiles = false;  // the processor has amx-tile,
  bool bf16 = false;   // and amx-bf16
  std::string
      refusal;  // why the system does not let them be used, as far as it was asked; or empty
};

// Asked once per process: the permission, once given, holds for all of its threads.
const TileSupport& tile_support();

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
