// The decoder that most families share: per layer norm, attention with grouped KV heads, residual,
// norm, gated feed-forward, of one kind for all tokens or of experts, residual; a norm and the
// output matrix at the end. What differs between families is a value.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "engine/kernels/rotary.h"
#include "engine/model/architectures/expert_mixture.h"
#include "engine/model/architectures/model_tensors.h"
#include "engine/model/model.h"

namespace lockstep {

struct DecoderTraits {
  RotaryPairs rotary_pairs = RotaryPairs::kInterleaved;
  Presence attention_biases = Presence::kOptional;  // of queries, keys and values
  Presence output_bias = Presence::kOptional;       // of attention
  Presence head_norms = Presence::kOptional;
  bool head_norms_are_last = false;  // behind the rotary positions instead of before
  // Whether a layer's queries and keys have rotary positions; none: all layers'.
  bool (*has_rotary)(size_t layer) = nullptr;
  std::string_view feed_forward_norm = "ffn_norm";  // its tensor
  // Whether attention.sliding_window holds for every layer (Mistral 7B's first version). In files
  // of other families the key may stand for a window that is not used.
  bool sliding_window = false;
  // Whether its models are mixtures of experts; without a value none is.
  std::optional<Presence> experts = std::nullopt;
  MixtureTraits mixture = {};
  bool has_latent_attention = false;  // of all layers
};

Result<Model> build_decoder(const ModelSource& source, const DecoderTraits& traits);

}  // namespace lockstep
