// The decoder that most families share: per layer norm, attention with grouped KV heads, residual,
// norm, gated feed-forward, residual; a norm and the output matrix at the end. What differs between
// families is a value.
#pragma once

#include "engine/kernels/rotary.h"
#include "engine/model/architecture.h"

namespace lockstep {

enum class Presence : uint8_t {
  kOptional,  // used where the file has it
  kRequired,
};

struct DenseDecoderTraits {
  RotaryPairs rotary_pairs = RotaryPairs::kInterleaved;
  Presence attention_biases = Presence::kOptional;
  Presence head_norms = Presence::kOptional;
  // Whether attention.sliding_window holds for every layer (Mistral 7B's first version). In files
  // of other families the key may stand for a window that is not used.
  bool sliding_window = false;
};

Result<Model> build_dense_decoder(const GgufFile& file, const DenseDecoderTraits& traits);

}  // namespace lockstep
