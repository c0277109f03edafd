// Qwen 3: every head of the queries and keys is normalized before its rotary positions.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_qwen3(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired}});
}

Result<Model> build_qwen3vl(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired}});
}

Result<Model> build_qwen3moe(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired},
                                .experts = Presence::kRequired});
}

Result<Model> build_qwen3vlmoe(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired},
                                .experts = Presence::kRequired});
}

}  // namespace lockstep
