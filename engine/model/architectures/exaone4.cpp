// EXAONE 4: norms behind attention and feed-forward instead of before; of models with a window only
// the layers that have it have positions.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_exaone4(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .norms = {.attention = "",
                                          .feed_forward = "",
                                          .behind_attention = "post_attention_norm",
                                          .behind_feed_forward = "post_ffw_norm"},
                                .head_norms = {.presence = Presence::kRequired},
                                .window = {.period = 4, .rotates_alone = true}});
}

}  // namespace lockstep
