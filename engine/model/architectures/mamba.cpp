// State spaces of Mamba-1 and Mamba-2: alone, in layers of one kind each beside attention and
// feed-forwards (Nemotron-H) or mixtures of experts (Nemotron 3), in the place of attention (Jamba,
// PLaMo 2), and beside attention in every layer (Falcon-H1).
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {
namespace {

bool has_no_rotary(size_t) {
  return false;
}

DecoderTraits traits_of_nemotron() {
  return {.norms = {.feed_forward = "attn_norm"},
          .has_rotary = has_no_rotary,
          .may_lack_parts = true,
          .state_spaces = StateSpaces::kOfBareLayers,
          .activation = ActivationFunction::kReluSquared,
          .is_gated = false};
}

}  // namespace

// Mamba, and Falcon Mamba, whose files say that factors are normed.
Result<Model> build_mamba(const ModelSource& source) {
  return build_decoder(source, {.has_rotary = has_no_rotary,
                                .may_lack_parts = true,
                                .state_spaces = StateSpaces::kAlone,
                                .state_space_kind = StateSpaceKind::kMamba1});
}

// Experts' weights are not normalized.
Result<Model> build_jamba(const ModelSource& source) {
  return build_decoder(source, {.has_rotary = has_no_rotary,
                                .state_spaces = StateSpaces::kInPlace,
                                .state_space_kind = StateSpaceKind::kMamba1,
                                .experts = Presence::kOptional,
                                .mixture = {.is_normalized = false, .is_told_by_tensors = true}});
}

Result<Model> build_plamo2(const ModelSource& source) {
  return build_decoder(
      source,
      {.rotary_pairs = RotaryPairs::kHalves,
       .norms = {.behind_attention = "post_attention_norm", .behind_feed_forward = "post_ffw_norm"},
       .head_norms = {.presence = Presence::kRequired, .weights = HeadNormWeights::kOwnRms},
       .may_lack_parts = true,
       .state_spaces = StateSpaces::kInPlace,
       .state_space_kind = StateSpaceKind::kPlamo2});
}

Result<Model> build_mamba2(const ModelSource& source) {
  return build_decoder(
      source,
      {.has_rotary = has_no_rotary, .may_lack_parts = true, .state_spaces = StateSpaces::kAlone});
}

Result<Model> build_nemotron_h(const ModelSource& source) {
  return build_decoder(source, traits_of_nemotron());
}

// Every feed-forward is a mixture: files do not say that its scores are of sigmoid.
Result<Model> build_nemotron_h_moe(const ModelSource& source) {
  DecoderTraits traits = traits_of_nemotron();
  traits.experts = Presence::kRequired;
  traits.mixture = {.gating = GatingFunction::kSigmoid,
                    .is_normalized = false,
                    .activation = ActivationFunction::kReluSquared,
                    .is_gated = false,
                    .is_told_by_tensors = true};
  traits.predicting =
      PredictingTraits{.feed_forward_norm = "post_attention_norm", .ends_with_layer_norm = true};
  return build_decoder(source, traits);
}

// Files have the models' many factors in their matrices.
Result<Model> build_falcon_h1(const ModelSource& source) {
  return build_decoder(
      source, {.rotary_pairs = RotaryPairs::kHalves, .state_spaces = StateSpaces::kBesideOthers});
}

}  // namespace lockstep
