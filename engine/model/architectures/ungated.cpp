// Families whose feed-forwards have no gate: Arcee's AFM by the square of ReLU, Apertus by xIELU.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_apertus(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired},
                                .activation = ActivationFunction::kXielu,
                                .is_gated = false});
}

Result<Model> build_arcee(const ModelSource& source) {
  return build_decoder(source, {.activation = ActivationFunction::kReluSquared, .is_gated = false});
}

}  // namespace lockstep
