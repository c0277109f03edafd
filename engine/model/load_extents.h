// What a load reads: the stretches of the files that the ranks' weights take, each of them once,
// and who reads which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/graph/plan.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

// A run of one weight's rows (or, of a vector, of its blocks) that all belong to the same slices.
struct LoadExtent {
  WeightId weight = kNone;
  uint32_t part = 0;    // of the model's files
  uint64_t offset = 0;  // from the start of that file
  size_t bytes = 0;
  size_t begin = 0;  // first row of a matrix, first block of a vector
  size_t end = 0;
  std::vector<const WeightSlice*> owners = {};  // the slices it belongs to; they live in the plans
};

struct LoadExtents {
  std::vector<std::vector<LoadExtent>> by_rank;  // in the order in which they lie in the files
  uint64_t bytes = 0;                            // of all of them
};

// A row of a matrix or a block of a vector: what is never cut.
size_t load_unit_bytes(const Weight& weight);

// The extents have at most `extent_bytes`, but at least a unit. What one rank holds alone it reads
// itself; what several hold, the one of them that has the least to read for its share.
LoadExtents cut_extents(const GgufFile& file, const Graph& graph,
                        std::span<const Plan* const> plans, size_t extent_bytes);

}  // namespace lockstep
