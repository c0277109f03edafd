// A weight's way: file -> packed for the kernels -> the memory of the rank that owns it. Each rank
// reads the rows that it owns, through a queue of its own; what several ranks hold a part of is
// read by one of them and given to all. Packing overlaps reading. Ranks on GPUs and on processors
// are loaded alike, at the same time.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "engine/base/result.h"
#include "engine/machine/disk_calls.h"
#include "engine/machine/workers.h"
#include "engine/model/gguf_file.h"
#include "engine/model/weight_sink.h"
#include "engine/operations/plan.h"

namespace lockstep {

// A rank whose slices are to be filled, by its own workers.
struct LoadTarget {
  const Plan& plan;
  std::byte* weights = nullptr;  // the arena that the slices lie in
  Workers& workers;
  int node = -1;  // of its buffers; -1: any
  // The sink of a rank on a GPU, used for that rank alone; null: the weights are packed into the
  // host's memory.
  WeightSink* sink = nullptr;
};

struct LoadOptions {
  bool direct = true;          // past the page cache, where the file system can
  bool from_cache = false;     // but what lies in it already is copied from there
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
  bool direct = false;         // what was not in the page cache was read past it
  bool registered = false;     // the buffers, with every ring
  size_t buffer_bytes = 0;     // of all ranks together
  uint64_t dropped_bytes = 0;  // from the page cache, which the load had brought in
  uint64_t cached_bytes = 0;   // copied from the page cache, where they lay before
  std::string not_pinned;      // why buffers that GPUs copy from are not pinned; empty: they are
};

// Bytes of the file that the plans' weights take, each counted as often as it is read (once, but
// for what cut_extents() says): the end of the progress. Of a row of which a rank holds some
// columns, all.
uint64_t bytes_to_load(const GgufFile& file, const Graph& graph, std::span<const LoadTarget> ranks);

// Fills the weight slices of all ranks' plans, all ranks at the same time. `bytes_done` grows while
// it runs. Fails with the first error met: the file's name, the offset and the reason, or what a
// GPU says; also when a file was written to or replaced meanwhile. What was loaded is then of no
// use. On a GPU, matrices become the planes of a GpuMatrix, aligned to 256 bytes.
Result<LoadReport> load_weights(const GgufFile& file, const Graph& graph,
                                std::span<const LoadTarget> ranks,
                                std::atomic<uint64_t>& bytes_done, const LoadOptions& options = {});

// The bytes of each GPU's memory that a load takes beside the slices, at most, however the graph is
// split.
size_t gpu_staging_bytes_max(const Graph& graph);

}  // namespace lockstep
