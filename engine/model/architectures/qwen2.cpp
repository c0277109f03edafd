// Qwen 2 and 2.5: as Llama, with biases in attention and rotary pairs in halves. Of files that were
// made of models which see images: their text model.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_qwen2(const ModelSource& source) {
  return build_decoder(
      source, {.rotary_pairs = RotaryPairs::kHalves, .attention_biases = Presence::kRequired});
}

Result<Model> build_qwen2vl(const ModelSource& source) {
  return build_decoder(
      source, {.rotary_pairs = RotaryPairs::kHalves, .attention_biases = Presence::kRequired});
}

Result<Model> build_paddleocr(const ModelSource& source) {
  return build_decoder(source, {.rotary_pairs = RotaryPairs::kHalves});
}

}  // namespace lockstep
