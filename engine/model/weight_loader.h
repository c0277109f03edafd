// A weight's way: file -> packed for the kernels -> the arena of the rank that owns it. All workers
// of the rank read and pack, each another stretch of rows, until nothing is left.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/base/result.h"
#include "engine/graph/plan.h"
#include "engine/machine/workers.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

// Bytes of the file that a plan's weights take: the end of the progress.
uint64_t bytes_to_load(const GgufFile& file, const Graph& graph, const Plan& plan);

// Fills the plan's weight slices. `bytes_done` grows while it runs. Fails with the first error met:
// the file's name, the offset and the reason; also when a file was written to meanwhile. What was
// loaded is then of no use.
Result<void> load_weights(const GgufFile& file, const Graph& graph, const Plan& plan,
                          Workers& workers, std::atomic<uint64_t>& bytes_done);

}  // namespace lockstep
