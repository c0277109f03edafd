// Llama 2 and 3, Mistral, SmolLM and their like.
#include "engine/model/architectures/dense_decoder.h"
#include "engine/model/architectures/rows.h"

namespace lockstep {

Result<Model> build_llama(const GgufFile& file) {
  return build_dense_decoder(file,
                             {.rotary_pairs = RotaryPairs::kInterleaved, .sliding_window = true});
}

}  // namespace lockstep
