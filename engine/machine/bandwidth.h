// How fast ranks read their memory: what bounds the speed of generation.
#pragma once

#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/rank_places.h"

namespace lockstep {

// Bytes per second that the workers of each place read from memory on its node, all places at the
// same time, as they will run. The best of a few rounds over 64 MiB per worker, at most 1 GiB per
// place: beyond the caches; by one stream per worker and by two. Takes some tenths of a second.
// Fails with kMachineRefused.
Result<std::vector<double>> measure_read_bandwidths(std::span<const RankPlace> places);

}  // namespace lockstep
