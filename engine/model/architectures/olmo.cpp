// OLMo 1: layer norms without weights, and clamped queries, keys and values. OLMo 2 and 3: norms
// behind attention and feed-forward instead of before, and of all queries and keys at once. OLMoE:
// a mixture whose weights are not normalized.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_olmo(const ModelSource& source) {
  return build_decoder(source, {.norm = NormKind::kPlainLayer, .clamps_inputs = true});
}

Result<Model> build_olmo2(const ModelSource& source) {
  return build_decoder(
      source, {.rotary_pairs = RotaryPairs::kHalves,
               .norms = {.attention = "",
                         .feed_forward = "",
                         .behind_attention = "post_attention_norm",
                         .behind_feed_forward = "post_ffw_norm"},
               .head_norms = {.presence = Presence::kRequired, .weights = HeadNormWeights::kWhole},
               .window = {.period = 4, .is_scaled = false}});
}

Result<Model> build_olmoe(const ModelSource& source) {
  return build_decoder(
      source, {.rotary_pairs = RotaryPairs::kHalves,
               .head_norms = {.presence = Presence::kRequired, .weights = HeadNormWeights::kWhole},
               .experts = Presence::kRequired,
               .mixture = {.is_normalized = false}});
}

}  // namespace lockstep
