// State spaces of Mamba-2 in the place of attention or beside it: one product gives what gates the
// results, x, b, c and the steps; x, b and c are convolved over the last tokens and activated; what
// the scan gives is gated, normed by groups where the file has ssm_norm, and multiplied with
// ssm_out.
#pragma once

#include <cstddef>
#include <string>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/architectures/model_tensors.h"

namespace lockstep {

struct StateSpace {
  DeltaShape heads;      // key heads: the groups of heads that have the same b and c
  size_t dimension = 0;  // of b and c in a group
  size_t columns = 0;    // of x: of all heads
  size_t taps = 0;       // tokens that convolutions are over
  float epsilon = 0;     // of the norm

  size_t group_columns() const { return heads.key_heads * dimension; }
};

// Reads the keys ssm.*. Fails with kInvalidInput that names the key and its value.
Result<StateSpace> read_state_space(ModelKeys& keys, const std::string& architecture);

// Adds that of the layer whose tensors' names begin with `block`; `h` is the normed residual.
// Returns what is to be added to the residual; after an error of `tensors`, `h`.
ValueId add_state_space(Graph& graph, ModelTensors& tensors, const StateSpace& space,
                        const std::string& block, ValueId h);

}  // namespace lockstep
