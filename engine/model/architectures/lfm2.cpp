// LFM2 (Liquid AI, 2025): gated short convolutions in most layers, attention in those that have KV
// heads; of LFM2 MoE, experts behind some dense layers. The norm at the end is named as others'
// norm of embeddings.
#include <string>

#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {
namespace {

DecoderTraits traits_of_lfm2() {
  return {.rotary_pairs = RotaryPairs::kHalves,
          .output_norm = "token_embd_norm",
          .head_norms = {.presence = Presence::kRequired},
          .window = {.period = 1},
          .has_convolutions = true};
}

// Files whose tokens see those behind them embed texts, and their convolutions are over tokens on
// both sides.
Result<Model> build(const ModelSource& source, const std::string& name,
                    const DecoderTraits& traits) {
  const std::string key = name + ".attention.causal";
  const auto causal = source.file.boolean(key);
  if (!causal) return std::unexpected(causal.error());
  if (causal->value_or(true)) return build_decoder(source, traits);
  return invalid_input(
      "{} is false, but convolutions over the tokens behind one are not known here: take a file of "
      "a model "
      "that generates, or another program for this one",
      key);
}

}  // namespace

Result<Model> build_lfm2(const ModelSource& source) {
  return build(source, "lfm2", traits_of_lfm2());
}

Result<Model> build_lfm2moe(const ModelSource& source) {
  DecoderTraits traits = traits_of_lfm2();
  traits.experts = Presence::kRequired;
  traits.mixture.gating = GatingFunction::kSigmoid;
  return build(source, "lfm2moe", traits);
}

}  // namespace lockstep
