// How fast a rank's processors read its memory: what bounds the speed of generation.
#pragma once

#include <span>

#include "engine/base/result.h"

namespace lockstep {

// Bytes per second that one thread per entry of `cpus` (-1: not pinned) reads together from memory
// on `node` (-1: wherever it is first touched). The best of a few rounds over 64 MiB per thread, at
// most 1 GiB: beyond the caches. Takes some tenths of a second. Fails with kMachineRefused.
Result<double> measure_read_bandwidth(std::span<const int> cpus, int node);

}  // namespace lockstep
