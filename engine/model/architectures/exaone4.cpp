// EXAONE 4: norms behind attention and feed-forward instead of before. The largest has a window in
// three of four layers, and positions in these alone; so have the mixtures, whose norms stand
// before again.
#include "engine/model/architectures/decoder.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_exaone4(const ModelSource& source) {
  constexpr size_t kWindowedLayers = 64;
  const auto layers = read_layer_count(source.file, "exaone4");
  if (!layers) return std::unexpected(layers.error());
  DecoderTraits traits = {.rotary_pairs = RotaryPairs::kHalves,
                          .norms = {.attention = "",
                                    .feed_forward = "",
                                    .behind_attention = "post_attention_norm",
                                    .behind_feed_forward = "post_ffw_norm"},
                          .head_norms = {.presence = Presence::kRequired}};
  if (*layers == kWindowedLayers) {
    traits.window = {.period = 4, .tokens = 4096, .rotates_alone = true};
  }
  return build_decoder(source, traits);
}

Result<Model> build_exaone_moe(const ModelSource& source) {
  return build_decoder(
      source, {.rotary_pairs = RotaryPairs::kHalves,
               .head_norms = {.presence = Presence::kRequired},
               .window = {.period = 4, .presence = Presence::kRequired, .rotates_alone = true},
               .experts = Presence::kRequired,
               .mixture = {.gating = GatingFunction::kSigmoid, .is_normalized = false}});
}

}  // namespace lockstep
