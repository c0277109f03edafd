// The rows of the table of transports that a test program tries: libraries that change the process
// have a program of their own.
#pragma once

#include <vector>

#include "engine/collectives/host_transports.h"

namespace lockstep {

std::vector<HostTransport> tested_transports();

}  // namespace lockstep
