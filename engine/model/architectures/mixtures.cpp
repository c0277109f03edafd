// Families of mixtures whose decoder is otherwise as others': what their files do not say of how
// experts are chosen and weighed.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_bailingmoe(const ModelSource& source) {
  return build_decoder(source,
                       {.experts = Presence::kRequired, .mixture = {.is_normalized = false}});
}

Result<Model> build_deepseek(const ModelSource& source) {
  return build_decoder(source,
                       {.experts = Presence::kRequired, .mixture = {.is_normalized = false}});
}

Result<Model> build_dots1(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired},
                                .experts = Presence::kRequired,
                                .mixture = {.is_normalized = false}});
}

Result<Model> build_ernie4_5_moe(const ModelSource& source) {
  return build_decoder(source, {.experts = Presence::kRequired});
}

// Every norm of heads stands behind the rotary positions.
Result<Model> build_hunyuan_moe(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired, .are_last = true},
                                .experts = Presence::kRequired});
}

Result<Model> build_hunyuan_dense(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired, .are_last = true}});
}

Result<Model> build_minimax_m2(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired, .weights = HeadNormWeights::kWhole},
                                .experts = Presence::kRequired,
                                .mixture = {.gating = GatingFunction::kSigmoid}});
}

Result<Model> build_qwen2moe(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .attention_biases = Presence::kRequired,
                                .experts = Presence::kRequired,
                                .mixture = {.is_normalized = false}});
}

}  // namespace lockstep
