// How a graph's tensors are laid over the ranks. Decided for all ranks at once, before any rank's
// plan is made (split_graph()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/base/range.h"
#include "engine/graph/graph.h"

namespace lockstep {

enum class Strategy : uint8_t { kGather, kReduce };

inline std::string_view strategy_name(Strategy strategy) {
  return strategy == Strategy::kGather ? "gather" : "reduce";
}

enum class SplitKind : uint8_t {
  kMirrored,  // every rank holds all of it
  kSliced,    // each rank holds a range of rows (a weight) or of columns (a weight, a value)
  kPartial,   // a value: the sum over the ranks is it
};

// `ranges` holds one range per rank, unless it is mirrored. The ranges of KV heads may overlap;
// those of a bias that is added to a partial result are empty on all ranks but the first.
struct WeightSplit {
  SplitKind kind = SplitKind::kMirrored;
  bool by_columns = false;  // kSliced: vectors always; matrices under `reduce`
  std::vector<Range> ranges = {};
};
struct ValueSplit {
  SplitKind kind = SplitKind::kMirrored;
  std::vector<Range> columns = {};  // kSliced
  // kSliced, and products read all of it: each rank pushes its columns to the others.
  bool gathered = false;
  // kSliced, and something else reads columns of other ranks: the same in f32.
  bool whole = false;
};

struct Split {
  Strategy strategy = Strategy::kGather;
  size_t rank_count = 1;
  std::vector<WeightSplit> weights;  // by WeightId
  std::vector<ValueSplit> values;    // by ValueId
};

}  // namespace lockstep
