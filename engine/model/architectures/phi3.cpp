// Phi 3 and 4: queries, keys and values in one tensor, gate and up in another; LongRoPE. The window
// that some files name is not applied, as elsewhere.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_phi3(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves});
}

}  // namespace lockstep
