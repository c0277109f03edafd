// Which hosts compute the model together, from what was given and from what a LeaderWorkerSet says
// in the environment (LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX), or mpirun or srun,
// which say how many there are and which this is.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/base/result.h"
#include "engine/interface/options.h"
#include "server/options/option_table.h"

namespace lockstep {

// Reads the secret's file. Fails with kInvalidInput for what contradicts itself or is missing: a
// place among the hosts, an address, a secret where one is needed.
Result<HostOptions> choose_hosts(
    const GivenHosts& given, const std::vector<std::pair<std::string, std::string>>& environment);

}  // namespace lockstep
