// Llama 2 and 3, Mistral, Mixtral, SmolLM, and families that differ from them in name alone, or in
// one thing: of Nemotron's (Deci) some layers lack parts, PLaMo has one norm for attention and
// feed-forward, OpenELM norms of heads and layers of all sizes.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_llama(const ModelSource& source) {
  return build_decoder(source, {.window = {.period = 1}, .experts = Presence::kOptional});
}

Result<Model> build_ernie4_5(const ModelSource& source) {
  return build_decoder(source, {});
}

Result<Model> build_internlm2(const ModelSource& source) {
  return build_decoder(source, {});
}

Result<Model> build_xverse(const ModelSource& source) {
  return build_decoder(source, {});
}

Result<Model> build_deci(const ModelSource& source) {
  return build_decoder(source, {.may_lack_parts = true});
}

Result<Model> build_openelm(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .head_norms = {.presence = Presence::kRequired}});
}

Result<Model> build_plamo(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves,
                                .norms = {.feed_forward = ""},
                                .residual = ResidualForm::kParallel});
}

}  // namespace lockstep
