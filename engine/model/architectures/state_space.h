// State spaces in the place of attention or beside it. Of Mamba-2 one product gives what gates the
// results, x, b, c and the steps; x, b and c are convolved over the last tokens and activated. Of
// Mamba-1 and PLaMo 2 it gives x and what gates; x is convolved and activated, and products of that
// give b, c and, by way of few columns, the steps. What the scan gives is gated, normed by groups
// where the file has ssm_norm, and multiplied with ssm_out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/architectures/model_tensors.h"

namespace lockstep {

enum class StateSpaceKind : uint8_t {
  kMamba1,  // heads of one column, each row of whose states decays by itself
  kMamba2,
  kPlamo2,  // heads as Mamba-2's in one group; each has what gates it before its x
};

struct StateSpace {
  StateSpaceKind kind = StateSpaceKind::kMamba2;
  DeltaShape heads;         // key heads: the groups of heads that have the same b and c
  size_t dimension = 0;     // of b and c in a group
  size_t columns = 0;       // of x: of all heads
  size_t taps = 0;          // tokens that convolutions are over
  size_t step_columns = 0;  // that steps are products of; kMamba2: none
  // b, c and what steps are made of have norms even where the file has no weights of them.
  bool norms_factors = false;
  float epsilon = 0;  // of the norms

  size_t group_columns() const { return heads.key_heads * dimension; }
};

// Reads the keys ssm.*; `columns`: of the residual. Fails with kInvalidInput that names the key and
// its value.
Result<StateSpace> read_state_space(ModelKeys& keys, const std::string& architecture,
                                    StateSpaceKind kind, size_t columns);

// Adds that of the layer whose tensors' names begin with `block`; `h` is the normed residual.
// Returns what is to be added to the residual; after an error of `tensors`, `h`.
ValueId add_state_space(Graph& graph, ModelTensors& tensors, const StateSpace& space,
                        const std::string& block, ValueId h);

}  // namespace lockstep
