// SmolLM 3: Llama 3 with every fourth layer without rotary positions.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_smollm3(const ModelSource& source) {
  return build_decoder(source, {.has_rotary = [](size_t layer) { return (layer + 1) % 4 != 0; }});
}

}  // namespace lockstep
