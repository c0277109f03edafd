// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads are
// made of one latent of each token, beside which a key has some rotated dimensions that all heads
// share. Files with attn_k_b and attn_v_b are computed over the latents themselves, which alone are
// stored: k_b is multiplied with the queries, v_b with what attention gives. Files with attn_kv_b,
// which older converters wrote, are computed over the keys and values that it makes of the latents.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/architectures/model_tensors.h"

namespace lockstep {

struct LatentAttention {
  size_t heads = 0;
  size_t latent = 0;           // columns of the latent of keys and values
  size_t query_latent = 0;     // of queries'; 0: they are made of the residual at once
  size_t own_dimension = 0;    // of a head's queries and keys, without positions
  size_t rope_dimension = 0;   // with positions
  size_t value_dimension = 0;  // of a head
  bool is_rotated = true;      // these; else they have no positions either
  float epsilon = 0;
  AttentionTraits traits = {};
  std::optional<Temperature> temperature = std::nullopt;  // of queries
};

// All but the epsilon, the traits and the temperature. `even_share`: a head's of the residual's
// columns, as which values are wide where no key says it. Fails with kInvalidInput that names the
// key and its value.
Result<LatentAttention> read_latent_attention(ModelKeys& keys, const std::string& architecture,
                                              size_t heads, size_t even_share);

// Adds the attention of the layer whose tensors' names begin with `block`; `h` is the normed
// residual, the graph's first rotary table that of positions. Returns the heads' results; after an
// error of `tensors`, `h`.
ValueId add_latent_attention(Graph& graph, ModelTensors& tensors, const LatentAttention& shape,
                             const std::string& block, size_t layer, ValueId h);

}  // namespace lockstep
