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

enum class Strategy : uint8_t { kGather, kReduce, kLayers };

inline std::string_view strategy_name(Strategy strategy) {
  constexpr std::string_view kNames[] = {"gather", "reduce", "layers"};
  return kNames[static_cast<size_t>(strategy)];
}

enum class SplitKind : uint8_t {
  kMirrored,  // every rank holds all of it
  kSliced,    // each rank holds a range of rows (a weight) or of columns (a weight, a value)
  kPartial,   // a value: the sum over the ranks is it
};

// `ranges` holds one range per rank, unless it is mirrored. The ranges of KV heads may overlap, and
// under `layers` those of a matrix or a residual that two ranks use; those of a bias that is added
// to a partial result are empty on all ranks but the first.
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

// A place between two nodes behind which one value alone is read of all before it: a residual.
struct LayerBorder {
  size_t node = 0;  // the first one behind it
  ValueId residual = kNone;

  friend bool operator==(const LayerBorder&, const LayerBorder&) = default;
};

struct Split {
  Strategy strategy = Strategy::kGather;
  size_t rank_count = 1;
  std::vector<WeightSplit> weights;  // by WeightId
  std::vector<ValueSplit> values;    // by ValueId
  // Under kLayers, by node: the rank that computes it, which has all columns of its value and all
  // of its weights; else none. The ranks of successive nodes never ascend.
  std::vector<size_t> owners = {};
  // The borders at which the owner changes, in order: both sides have all columns of the residual.
  std::vector<LayerBorder> borders = {};

  bool is_by_layers() const { return strategy == Strategy::kLayers; }
};

}  // namespace lockstep
