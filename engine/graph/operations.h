// The operations that graphs know, as one table: what each is called, how its output is laid over
// the ranks, what it costs, and whether GPUs have a kernel for its plain step. What an operation
// computes stands in graph.h, its plain step in plan.h, its node kernel in kernel_table.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/graph/graph.h"

namespace lockstep {

// How an operation's output is laid over the ranks.
enum class SplitRule : uint8_t {
  kVocabulary,  // every rank looks up its rows of the table and pushes them: mirrored
  kProduct,     // by rows or columns of the matrix, as what reads the product needs it
  kMirrored,    // every rank finds it out by itself
  kFirstInput,  // as the first input
  kInputs,      // as the inputs, of which each element is computed by itself
  kHeads,       // at the heads at which an input is cut, each head by itself
};

// The data that an operation reads beside its operands' rows; it takes most of a pass's time.
enum class Cost : uint8_t {
  kNothing,
  kTableRows,  // a table's row for each token
  kMatrix,     // all of a matrix, once for all tokens, and multiplies each with it
  kExperts,    // likewise the matrices of those experts that tokens go to
  kCache,      // the keys and values that each token sees
};

struct OperationTraits {
  Operation operation = Operation::kEmbed;
  std::string_view name;  // as plan and the log have it
  SplitRule split = SplitRule::kInputs;
  Cost cost = Cost::kNothing;
  // Whether GPUs have its plain step; else they have only steps that a fusion rule joins it to.
  bool has_gpu_step = false;
};

// By Operation.
std::span<const OperationTraits> operation_table();
inline const OperationTraits& traits(Operation operation) {
  return operation_table()[static_cast<size_t>(operation)];
}

}  // namespace lockstep
