// Qwen 2 and 2.5: biases on queries, keys and values.
#include "engine/model/architectures/decoder.h"
#include "engine/model/architectures/rows.h"

namespace lockstep {

Result<Model> build_qwen2(const GgufFile& file) {
  return build_decoder(
      file, {.rotary_pairs = RotaryPairs::kHalves, .attention_biases = Presence::kRequired});
}

}  // namespace lockstep
