// A weight's way: file -> packed for the kernels -> the arena of the rank that owns it. Each rank
// reads the rows that it owns, through a queue of its own; what several ranks hold a part of is
// read by one of them and packed into the arenas of all. Packing overlaps reading.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/graph/plan.h"
#include "engine/machine/disk_calls.h"
#include "engine/machine/workers.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

// A rank whose slices are to be filled, by its own workers.
struct LoadTarget {
  const Plan& plan;
  Workers& workers;
  int node = -1;  // where its buffers shall lie; -1: anywhere
};

struct LoadOptions {
  bool direct = true;          // past the page cache, where the file system can
  bool io_uring = true;        // where the kernel has it; else pread()
  size_t buffer_bytes = 0;     // of one read; 0: chosen. Wider rows get what they need
  DiskCalls* calls = nullptr;  // none: the kernel
};

// How a load went.
struct LoadReport {
  uint64_t bytes = 0;          // of the files, each counted once
  double seconds = 0;          // of reading and packing
  bool io_uring = false;       // all ranks had a ring
  int ring_error = 0;          // why one had none, where one was wanted
  bool direct = false;         // no file was read through the page cache
  bool registered = false;     // the buffers, with every ring
  size_t buffer_bytes = 0;     // of all ranks together
  uint64_t dropped_bytes = 0;  // from the page cache, which the load had brought in
};

// Bytes of the file that the plans' weights take, each counted once: the end of the progress. Of a
// row of which a rank holds some columns, all.
uint64_t bytes_to_load(const GgufFile& file, const Graph& graph, std::span<const LoadTarget> ranks);

// Fills the weight slices of all ranks' plans, all ranks at the same time. `bytes_done` grows while
// it runs. Fails with the first error met: the file's name, the offset and the reason; also when a
// file was written to or replaced meanwhile. What was loaded is then of no use.
Result<LoadReport> load_weights(const GgufFile& file, const Graph& graph,
                                std::span<const LoadTarget> ranks,
                                std::atomic<uint64_t>& bytes_done, const LoadOptions& options = {});

}  // namespace lockstep
