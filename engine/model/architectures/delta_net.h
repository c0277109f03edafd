// Gated delta nets in the place of attention (Qwen3-Next, Qwen 3.5): queries, keys and values are
// convolved over the last tokens and activated; what the delta net gives is normed by heads, gated
// by a product of the layer's input, and multiplied with ssm_out. Files have beta and alpha in
// tensors of their own or, for each key head, in the rows of one; older files have queries, keys,
// values and gates in the rows of one as well, key head by key head.
// Kimi Delta Attention (Kimi Linear) is such a net of as many key heads as value heads, each row of
// whose states has a decay of its own: decays and gates are products of narrow ones, queries, keys
// and values have matrices and convolutions of their own.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/architectures/model_tensors.h"

namespace lockstep {

struct DeltaNet {
  DeltaShape heads;
  size_t dimension = 0;         // of queries and keys
  size_t value_dimension = 0;   // of a head
  size_t taps = 0;              // tokens that convolutions are over
  float norm_epsilon = 0;       // of the norm of what heads give
  bool has_row_decays = false;  // Kimi Delta Attention

  size_t keys() const { return heads.key_heads * dimension; }
  size_t values() const { return heads.value_heads * value_dimension; }
};

// Reads the keys ssm.*. Fails with kInvalidInput that names the key and its value.
Result<DeltaNet> read_delta_net(ModelKeys& keys, const std::string& architecture, bool is_tiled);

// Likewise kda.head_dim and ssm.conv_kernel, of Kimi Delta Attention.
Result<DeltaNet> read_kimi_delta_net(ModelKeys& keys, const std::string& architecture,
                                     size_t heads);

// Whether each layer has one: as attention.recurrent_layers says, or all but every
// full_attention_interval-th.
std::vector<bool> read_recurrent_layers(ModelKeys& keys, size_t layers);

// Adds that of the layer whose tensors' names begin with `block`; `h` is the normed residual.
// Returns what is to be added to the residual; after an error of `tensors`, `h`.
ValueId add_delta_net(Graph& graph, ModelTensors& tensors, const DeltaNet& net,
                      const std::string& block, ValueId h);

}  // namespace lockstep
