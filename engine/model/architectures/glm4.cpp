// GLM 4: norms before and behind attention and feed-forward. GLM 4.5 to 4.7: a mixture behind some
// dense layers, with a shared expert.
#include <algorithm>
#include <cstdint>

#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

// Files of models that see images have pairs in halves, as sections of positions have them.
Result<Model> build_glm4(const ModelSource& source) {
  const auto sections = source.file.integers("glm4.rope.dimension_sections");
  if (!sections) return std::unexpected(sections.error());
  const bool has_sections = sections->has_value() &&
                            std::ranges::any_of(**sections, [](int64_t each) { return each > 0; });
  return build_decoder(
      source, {.rotary_pairs = has_sections ? RotaryPairs::kHalves : RotaryPairs::kInterleaved,
               .norms = {.behind_attention = "post_attention_norm",
                         .behind_feed_forward = "post_ffw_norm"}});
}

Result<Model> build_glm4moe(const ModelSource& source) {
  return build_decoder(source,
                       {.rotary_pairs = RotaryPairs::kHalves,
                        .norms = {.feed_forward = "post_attention_norm"},
                        .experts = Presence::kRequired,
                        .mixture = {.gating = GatingFunction::kSigmoid, .is_normalized = false},
                        .predicting = PredictingTraits{}});
}

}  // namespace lockstep
