// Qwen 3's mixtures of experts.
#include "engine/model/architectures/decoder.h"
#include "engine/model/architectures/rows.h"

namespace lockstep {

Result<Model> build_qwen3moe(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = Presence::kRequired,
                                .experts = Presence::kRequired});
}

Result<Model> build_qwen3vlmoe(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = Presence::kRequired,
                                .experts = Presence::kRequired});
}

}  // namespace lockstep
