// openPangu Embedded: biases on all of attention.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_pangu_embedded(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .attention_biases = Presence::kRequired,
                                .output_bias = Presence::kRequired});
}

}  // namespace lockstep
