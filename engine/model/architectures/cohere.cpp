// Command R, R+ and R7B: one norm without biases for attention and feed-forward, both added to the
// residual; R+ has norms of heads; of R7B only layers with a window have positions.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_command_r(const ModelSource& source) {
  return build_decoder(source, {.norm = NormKind::kLayer,
                                .norms = {.feed_forward = ""},
                                .residual = ResidualForm::kParallel,
                                .head_norms = {.weights = HeadNormWeights::kOwn},
                                .logit_scale = LogitScale::kMultiplies});
}

Result<Model> build_cohere2(const ModelSource& source) {
  return build_decoder(
      source, {.norm = NormKind::kLayer,
               .norms = {.feed_forward = ""},
               .residual = ResidualForm::kParallel,
               .window = {.period = 4, .presence = Presence::kRequired, .rotates_alone = true},
               .logit_scale = LogitScale::kMultiplies});
}

}  // namespace lockstep
