// The kernels of the emulated cuBLASLt, for tests that give it others than it has.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::ptx {

struct OfferedKernel {
  uint64_t column_step = 1;                // it computes D in whole steps of so many columns
  bool cuts_sums = false;                  // and adds up the parts afterwards
  uint64_t offered_columns_max = 1 << 30;  // it is offered for D with so many columns at most
};

// In the order in which they are offered. One at the start, which computes everything. Changed
// while no product is asked for.
std::vector<OfferedKernel>& offered_kernels();

}  // namespace lockstep::ptx
