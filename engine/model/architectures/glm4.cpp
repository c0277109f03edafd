// GLM 4: norms before and behind attention and feed-forward. GLM 4.5 to 4.7: a mixture behind some
// dense layers, with a shared expert.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_glm4(const ModelSource& source) {
  return build_decoder(source, {.norms = {.behind_attention = "post_attention_norm",
                                          .behind_feed_forward = "post_ffw_norm"}});
}

Result<Model> build_glm4moe(const ModelSource& source) {
  return build_decoder(source,
                       {.rotary_pairs = RotaryPairs::kHalves,
                        .norms = {.feed_forward = "post_attention_norm"},
                        .experts = Presence::kRequired,
                        .mixture = {.gating = GatingFunction::kSigmoid, .is_normalized = false}});
}

}  // namespace lockstep
