// The most ranks of one machine: more than any has nodes and GPUs; a number above it is a slip.
#pragma once

#include <cstddef>

namespace lockstep {

inline constexpr size_t kRanksMax = 64;

}  // namespace lockstep
