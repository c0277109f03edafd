// Qwen3-Next and Qwen 3.5: gated delta nets in most layers, and attention whose queries come with
// gates in the others. Files of Qwen 3.5 have value heads in another order.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {
namespace {

DecoderTraits traits_of_next(DeltaHeads heads) {
  return {.rotary_pairs = RotaryPairs::kHalves,
          .norms = {.feed_forward = "post_attention_norm"},
          .head_norms = {.presence = Presence::kRequired},
          .has_query_gates = true,
          .delta_nets = heads,
          .predicting = PredictingTraits{}};
}

}  // namespace

Result<Model> build_qwen3next(const ModelSource& source) {
  DecoderTraits traits = traits_of_next(DeltaHeads::kGrouped);
  traits.experts = Presence::kRequired;
  return build_decoder(source, traits);
}

Result<Model> build_qwen35(const ModelSource& source) {
  return build_decoder(source, traits_of_next(DeltaHeads::kTiled));
}

Result<Model> build_qwen35moe(const ModelSource& source) {
  DecoderTraits traits = traits_of_next(DeltaHeads::kTiled);
  traits.experts = Presence::kRequired;
  return build_decoder(source, traits);
}

}  // namespace lockstep
