// The sizes and factors of a decoder, from a file's keys and its family's traits.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/architectures/decoder_traits.h"
#include "engine/model/architectures/delta_net.h"
#include "engine/model/architectures/expert_mixture.h"
#include "engine/model/architectures/latent_attention.h"
#include "engine/model/architectures/state_space.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

struct LayerShape {
  size_t heads = 0;     // of queries; 0: the layer has no attention
  size_t kv_heads = 0;  // 0: a product or a convolution stands in the place of attention
  size_t head_dimension = 0;
  size_t value_dimension = 0;
  size_t stored_by = 0;  // the layer whose keys and values it reads: itself or an earlier one
  bool has_window = false;
  bool has_delta_net = false;    // in the place of attention
  bool has_state_space = false;  // in the place of attention, or beside it
  float score_factor = 0;        // of attention, beside what positions bring
  bool has_experts = false;
  size_t feed_forward = 0;     // without experts or beside them; 0: there is none
  Activation activation = {};  // of this feed-forward
};

struct DecoderShape {
  DecoderSizes sizes;
  std::vector<LayerShape> layers;
  size_t first_block = 0;                            // whose tensors the first of these layers has
  ExpertMixture mixture;                             // of layers with experts
  std::optional<DeltaNet> delta_net = std::nullopt;  // of layers that have one
  std::optional<StateSpace> state_space = std::nullopt;  // likewise
  std::optional<LatentAttention> latent_attention = std::nullopt;
  size_t context = 0;
  size_t indexed_keys = 0;  // most keys among which an indexer leaves out none; 0: there is none
  size_t window = 0;        // most keys that a token of a windowed layer sees; 0: all before it
  size_t convolved = 0;     // tokens that a convolution in the place of attention is over
  float epsilon = 0;
  float last_epsilon = 0;  // of the last norm of a block that predicts further tokens
  float score_cap = 0;     // 0: none
  float logit_cap = 0;     // 0: none
  float embedding_factor = 1;
  float residual_factor = 1;  // of what is added to the residual
  float logit_factor = 1;
  float value_factor = 1;    // of what attention gives
  float input_bound = 0;     // queries, keys and values are clamped to it; 0: they are not
  size_t layer_columns = 0;  // of a token's embedding for a layer; 0: there is none
  std::optional<Temperature> temperature = std::nullopt;  // of queries
};

// `block`: of the blocks that predict further tokens this one is the only layer. Fails with
// kInvalidInput that names the key and its value.
Result<DecoderShape> read_decoder_shape(const GgufFile& file, const std::string& architecture,
                                        const DecoderTraits& traits,
                                        std::optional<size_t> block = std::nullopt);

}  // namespace lockstep
