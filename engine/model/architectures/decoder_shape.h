// The sizes and factors of a decoder, from a file's keys and its family's traits.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/architectures/decoder_traits.h"
#include "engine/model/architectures/expert_mixture.h"
#include "engine/model/architectures/latent_attention.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

struct DecoderShape {
  DecoderSizes sizes;
  size_t feed_forward = 0;              // of a layer without experts
  std::vector<Activation> activations;  // of these layers' feed-forwards, by layer
  ExpertMixture mixture;                // or of experts, where there are any
  size_t kv_heads = 0;
  size_t value_dimension = 0;
  std::optional<LatentAttention> latent_attention = std::nullopt;
  size_t context = 0;
  size_t window = 0;           // most keys that a token of a windowed layer sees; 0: all before it
  std::vector<bool> windowed;  // by layer
  float epsilon = 0;
  float score_factor = 0;  // of attention, beside what positions bring
  float score_cap = 0;     // 0: none
  float logit_cap = 0;     // 0: none
  float embedding_factor = 1;
  float residual_factor = 1;  // of what is added to the residual
  float logit_factor = 1;
  std::optional<Temperature> temperature = std::nullopt;  // of queries

  bool has_window(size_t layer) const { return window > 0 && windowed[layer]; }
};

// Fails with kInvalidInput that names the key and its value.
Result<DecoderShape> read_decoder_shape(const GgufFile& file, const std::string& architecture,
                                        const DecoderTraits& traits);

}  // namespace lockstep
