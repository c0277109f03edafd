// Llama 2 and 3, Mistral, Mixtral, SmolLM and their like.
#include "engine/model/architectures/decoder.h"
#include "engine/model/architectures/rows.h"

namespace lockstep {

Result<Model> build_llama(const GgufFile& file) {
  return build_decoder(file, {.rotary_pairs = RotaryPairs::kInterleaved,
                              .sliding_window = true,
                              .experts = Presence::kOptional});
}

}  // namespace lockstep
