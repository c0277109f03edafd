// Seed-OSS: Qwen 2 whose norm before the feed-forward has another name.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_seed_oss(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .norms = {.feed_forward = "post_attention_norm"}});
}

}  // namespace lockstep
