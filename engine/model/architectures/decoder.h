// The decoder that most families share: per layer norm, attention with grouped KV heads, residual,
// norm, gated feed-forward, of one kind for all tokens or of experts, residual; a norm and the
// output matrix at the end. What differs between families is a value.
#pragma once

#include <optional>

#include "engine/kernels/rotary.h"
#include "engine/model/architecture.h"
#include "engine/model/architectures/model_tensors.h"

namespace lockstep {

struct DecoderTraits {
  RotaryPairs rotary_pairs = RotaryPairs::kInterleaved;
  Presence attention_biases = Presence::kOptional;
  Presence head_norms = Presence::kOptional;
  // Whether attention.sliding_window holds for every layer (Mistral 7B's first version). In files
  // of other families the key may stand for a window that is not used.
  bool sliding_window = false;
  // Whether its models are mixtures of experts; without a value none is.
  std::optional<Presence> experts = std::nullopt;
};

Result<Model> build_decoder(const GgufFile& file, const DecoderTraits& traits);

}  // namespace lockstep
