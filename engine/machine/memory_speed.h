// How fast processors reach a node's memory, in every way, and how fast ranks read theirs, which
// bounds the speed of generation.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/machine/rank_places.h"

namespace lockstep {

// Bytes per second; the best of several passes over the memory, as befits a limit. Reads are those
// of one or two streams per core, whichever is faster. Writes and copies go past the caches, as
// those of a core that does not need the bytes again.
struct Bandwidth {
  double read = 0;
  double write = 0;
  double copy = 0;  // bytes copied: each is read and written
};

// How threads on some processors and the memory of a node are measured.
struct MemoryMeasurement {
  std::span<const int> cpus;
  int node = -1;
  size_t bytes = 0;    // looked at, all threads together: 1 MiB each at least, and several times
                       // the caches to be of use
  double seconds = 0;  // spent on each figure, and at least one pass
};

struct MemorySpeed {
  Bandwidth all_cores;
  Bandwidth one_core;          // the first of them alone
  double latency_seconds = 0;  // of one read that nothing foresaw, by the first of them
  std::string pages;           // of the memory: "hugetlb 2 MiB"
};

// Fails with kMachineRefused when there are no such threads or there is no such memory.
Result<MemorySpeed> measure_memory(const MemoryMeasurement& measurement);

// Bytes per second that threads copy from a node's memory to that of another node or of the same:
// the best of several passes. `measurement.node` is where it comes from. Fails as measure_memory().
Result<double> measure_copy(const MemoryMeasurement& measurement, int to_node);

// Bytes per second that the workers of each place read from memory on its node, all places at the
// same time, as they will run. The best of a few rounds over 64 MiB per worker, at most 1 GiB per
// place: beyond the caches; by one stream per worker and by two. Takes some tenths of a second.
// Fails with kMachineRefused.
Result<std::vector<double>> measure_read_bandwidths(std::span<const RankPlace> places);

}  // namespace lockstep
