// gpt-oss: biases everywhere, a sink for each query head, a window in every second layer, experts
// with a clipped SwiGLU. Its YaRN mixes from and to fractions of a dimension, which no key says.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_gpt_oss(const ModelSource& source) {
  const Activation activation(ActivationFunction::kClippedSwiglu, {1.702F, 7});
  return build_decoder(
      source, {.rotary_pairs = RotaryPairs::kHalves,
               .norms = {.feed_forward = "post_attention_norm"},
               .attention_biases = Presence::kRequired,
               .output_bias = Presence::kRequired,
               .sinks = Presence::kRequired,
               .window = {.period = 2, .presence = Presence::kRequired},
               .rounds_yarn_ramp = false,
               .experts = Presence::kRequired,
               .mixture = {.gating = GatingFunction::kChosenSoftmax, .activation = activation}});
}

}  // namespace lockstep
