// Shares the files that a process may have open among the parts of the daemon. Each connection is
// one; where they do not suffice for all, the crowd's gate has what the others leave.
#pragma once

#include <cstddef>

namespace lockstep {

struct DescriptorShares {
  size_t connections = 0;        // of the server for all requests
  size_t over_limit = 0;         // above those, for health and metrics (HttpLimits)
  size_t probe_connections = 0;  // of the server for probes
  size_t probe_over_limit = 0;   // above those
  size_t kept = 0;               // for everything else: files, the engine's devices, clients that
                                 // are turned away
};

// The share of each of `limit` open files, at least 1 and at most what it wants: `wanted` says so,
// and in `kept` how many are open for everything else, which will be more.
DescriptorShares share_descriptors(size_t limit, const DescriptorShares& wanted);

// Raises this process's soft limit of open files so far that all of it fits, or as far as it goes.
// The limit then.
size_t raise_descriptor_limit(const DescriptorShares& wanted);

// How many files this process has open; 0 if nobody says.
size_t open_descriptors();

}  // namespace lockstep
