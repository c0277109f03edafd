// EXAONE 3: Llama 3 with rotary pairs in halves.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_exaone(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves});
}

}  // namespace lockstep
