// Llama 2 and 3, Mistral, Mixtral, SmolLM, and families that differ from them in name alone.
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

}  // namespace lockstep
