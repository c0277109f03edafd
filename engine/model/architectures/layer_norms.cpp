// Families with layer norms: StarCoder 2, Nemotron and Jais 2 without gates, StableLM with, some of
// it with one norm for attention and feed-forward, and norms of heads; Phi 2 and Falcon, always so,
// and without gates; Orion.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_starcoder2(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .norm = NormKind::kLayer,
                                .activation = ActivationFunction::kGeluTanh,
                                .is_gated = false});
}

Result<Model> build_nemotron(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .norm = NormKind::kLayer,
                                .activation = ActivationFunction::kReluSquared,
                                .is_gated = false});
}

Result<Model> build_jais2(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .norm = NormKind::kLayer,
                                .attention_biases = Presence::kRequired,
                                .output_bias = Presence::kRequired,
                                .activation = ActivationFunction::kReluSquared,
                                .is_gated = false});
}

Result<Model> build_stablelm(const ModelSource& source) {
  DecoderTraits traits = {.rotary_pairs = RotaryPairs::kHalves,
                          .norm = NormKind::kLayer,
                          .head_norms = {.weights = HeadNormWeights::kOwn}};
  if (source.file.find_tensor("blk.0.ffn_norm.weight") == nullptr) {
    traits.norms.feed_forward = "";
    traits.residual = ResidualForm::kParallel;
  }
  return build_decoder(source, traits);
}

Result<Model> build_phi2(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .norm = NormKind::kLayer,
                                .norms = {.feed_forward = ""},
                                .residual = ResidualForm::kParallel,
                                .activation = ActivationFunction::kGeluTanh,
                                .is_gated = false});
}

// The 7B has one norm; of the 40B's two the second is attention's.
Result<Model> build_falcon(const ModelSource& source) {
  DecoderTraits traits = {.rotary_pairs = RotaryPairs::kHalves,
                          .norm = NormKind::kLayer,
                          .norms = {.feed_forward = ""},
                          .residual = ResidualForm::kParallel,
                          .activation = ActivationFunction::kGelu,
                          .is_gated = false};
  if (source.file.find_tensor("blk.0.attn_norm_2.weight") != nullptr) {
    traits.norms = {.attention = "attn_norm_2", .feed_forward = "attn_norm"};
  }
  return build_decoder(source, traits);
}

Result<Model> build_orion(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves, .norm = NormKind::kLayer});
}

}  // namespace lockstep
