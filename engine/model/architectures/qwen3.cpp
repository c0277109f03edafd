// Qwen 3: every head of the queries and keys is normalized before its rotary positions.
#include "engine/model/architectures/decoder.h"
#include "engine/model/architectures/rows.h"

namespace lockstep {

Result<Model> build_qwen3(const GgufFile& file) {
  return build_decoder(file,
                       {.rotary_pairs = RotaryPairs::kHalves, .head_norms = Presence::kRequired});
}

}  // namespace lockstep
