// What one exchange between ranks costs: a token's activation pushed to all, and all ranks meeting.
#pragma once

#include <cstddef>
#include <span>

#include "engine/base/result.h"
#include "engine/machine/rank_places.h"

namespace lockstep {

// Seconds of one exchange in which the ranks together push `bytes`, each worker its part. The mean
// over a thousand in a row, the best of a few such rounds. 0 for one rank. Fails with
// kMachineRefused.
Result<double> measure_exchange(std::span<const RankPlace> places, size_t bytes);

}  // namespace lockstep
