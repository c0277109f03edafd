// A weight's way: file -> packed for the kernels -> the arena of the rank that owns it. Each rank
// reads the rows that it owns, through a queue of its own; what several ranks hold a part of is
// read by one of them and packed into the arenas of all. Packing overlaps reading.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/graph/plan.h"
#include "engine/machine/workers.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

// A rank whose slices are to be filled, by its own workers.
struct LoadTarget {
  const Plan& plan;
  Workers& workers;
  int node = -1;  // where its buffers shall lie; -1: anywhere
};

// Bytes of the file that the plans' weights take, each counted once: the end of the progress.
uint64_t bytes_to_load(const GgufFile& file, const Graph& graph, std::span<const LoadTarget> ranks);

// Fills the weight slices of all ranks' plans. `bytes_done` grows while it runs. Fails with the
// first error met: the file's name, the offset and the reason; also when a file was written to
// meanwhile. What was loaded is then of no use.
Result<void> load_weights(const GgufFile& file, const Graph& graph,
                          std::span<const LoadTarget> ranks, std::atomic<uint64_t>& bytes_done);

}  // namespace lockstep
