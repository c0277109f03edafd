// The extents that a load reads: the slices of the files that the ranks' weights take, each of them
// once, and which rank reads which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/gguf_file.h"
#include "engine/operations/plan.h"

namespace lockstep {

// A slice that an extent belongs to; it lives in the rank's plan.
struct ExtentOwner {
  size_t rank = 0;
  const WeightSlice* slice = nullptr;
};

// A run of one weight's rows (or, of a vector, of its blocks) that all belong to the same slices.
struct LoadExtent {
  WeightId weight = kNone;
  uint32_t part = 0;    // of the model's files
  uint64_t offset = 0;  // from the start of that file
  size_t bytes = 0;
  size_t begin = 0;  // first row of a matrix, first block of a vector
  size_t end = 0;
  std::vector<ExtentOwner> owners = {};
};

struct LoadExtents {
  std::vector<std::vector<LoadExtent>> by_rank;  // in the order in which they lie in the files
  uint64_t bytes = 0;                            // of all of them
};

// A rank whose plan's slices are to be loaded.
struct RankToLoad {
  const Plan* plan = nullptr;
  // Each of its extents of a matrix begins and ends at a multiple of 16 rows of the slice, or at
  // the slice's end: GPUs pack whole panels.
  bool whole_panels = false;
};

// A row of a matrix or a block of a vector: what is never cut.
size_t load_unit_bytes(const Weight& weight);

// The extents have at most `extent_bytes`, but at least a unit, or a GPU's panel. What one rank
// holds alone it reads itself; what several hold, the one of them that has the least to read for
// its share. Every byte is in one extent, but where slices overlap in such a way that a GPU's
// panels would be cut: such a GPU has extents of its own.
LoadExtents cut_extents(const GgufFile& file, const Graph& graph, std::span<const RankToLoad> ranks,
                        size_t extent_bytes);

}  // namespace lockstep
