// The table of operations: what an operation is to those who split, plan and refuse a graph. Each
// row stands in its operation's folder, beside its planning; its step and its node's kernel stand
// there as well. What an operation computes is said in graph.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/graph/fusion/groups.h"
#include "engine/graph/graph.h"
#include "engine/graph/split.h"

namespace lockstep {

class RankPlanner;

// How an operation's output is laid over the ranks.
enum class SplitRule : uint8_t {
  kVocabulary,  // every rank looks up its rows of the table and pushes them: mirrored
  kProduct,     // by rows or columns of the matrix, as what reads the product needs it
  kMirrored,    // every rank finds it out by itself
  kFirstInput,  // as the first input
  kInputs,      // as the inputs, of which each element is computed by itself
  kHeads,       // at the heads at which an input is cut, each head by itself
  kValueHeads,  // at the heads at which the first input is cut; of others what these read
};

// The data that an operation reads beside its operands' rows; it takes most of a pass's time.
enum class Cost : uint8_t {
  kNothing,
  kTableRows,  // a table's row for each token
  kMatrix,     // all of a matrix, once for all tokens, and multiplies each with it
  kExperts,    // likewise the matrices of those experts that tokens go to
  kCache,      // the keys and values that each token sees
};

// The size of one sequence's state of a node: rows of so many floats.
struct StateShape {
  size_t rows = 0;
  size_t columns = 0;
};

// The state of a delta net or a scan: a matrix of each value head.
StateShape value_head_state(const GraphNode& node, size_t own_columns);

// A group of nodes that GPUs are to compute.
struct GroupParts {
  const Graph& graph;
  const Split& split;
  const std::vector<ValueReaders>& readers;  // by value
  const Group& group;
};

struct OperationRow {
  Operation operation = Operation::kEmbed;
  std::string_view name;  // as plan and the log have it
  SplitRule split = SplitRule::kInputs;
  Cost cost = Cost::kNothing;
  // Whether a product is cut for the sake of what reads this operation's output, where the
  // operation reads the product.
  bool hands_on = false;
  // The state that a rank keeps for the columns that it computes of the node; null: there is none.
  StateShape (*state)(const GraphNode& node, size_t own_columns) = nullptr;
  // Emits the step of a group that the operation leads: alone, or joined by fusion rules.
  void (*plan)(RankPlanner& planner, const Group& group) = nullptr;
  // Whether the step leaves a value's own columns in f32, and steps behind it what else is read.
  bool leaves_forms = false;
  // Whether GPUs have the steps that the operation leads.
  bool has_gpu_step = false;
  // Names what GPUs cannot compute of this node of a group; null: nothing is in the way.
  std::optional<std::string_view> (*gpu_gap)(const GroupParts& parts,
                                             const GraphNode& node) = nullptr;
};

// The rows, each in its operation's folder.
extern const OperationRow kEmbedRow;
extern const OperationRow kGivenRowsRow;
extern const OperationRow kRmsNormRow;
extern const OperationRow kLayerNormRow;
extern const OperationRow kHeadNormRow;
extern const OperationRow kMatmulRow;
extern const OperationRow kHeadMatmulRow;
extern const OperationRow kRotaryRow;
extern const OperationRow kAttentionRow;
extern const OperationRow kActivationRow;
extern const OperationRow kGateRow;
extern const OperationRow kAddRow;
extern const OperationRow kScaleRow;
extern const OperationRow kSoftCapRow;
extern const OperationRow kClampRow;
extern const OperationRow kScaleRowsRow;
extern const OperationRow kSelectRowsRow;
extern const OperationRow kMeanRowsRow;
extern const OperationRow kSliceHeadsRow;
extern const OperationRow kJoinHeadsRow;
extern const OperationRow kTemperatureRow;
extern const OperationRow kConvolutionRow;
extern const OperationRow kDeltaNetRow;
extern const OperationRow kScanRow;
extern const OperationRow kRouteRow;
extern const OperationRow kExpertMatmulRow;
extern const OperationRow kExpertSumRow;

// All of them, by Operation.
std::span<const OperationRow* const> operation_table();
inline const OperationRow& row_of(Operation operation) {
  return *operation_table()[static_cast<size_t>(operation)];
}

// A gap that several rows share: more norms behind a sum than a kernel takes.
std::optional<std::string_view> sum_gap(const GroupParts& parts);

}  // namespace lockstep
