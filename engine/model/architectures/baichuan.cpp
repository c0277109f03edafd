// Baichuan 7B: Llama. The 13B has ALiBi (a bias by distance) instead of rotary positions; a file
// does not say so but by its number of layers.
#include "engine/model/architectures/decoder.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_baichuan(const ModelSource& source) {
  constexpr size_t kRotaryLayers = 32;
  const auto layers = read_block_count(source.file, "baichuan");
  if (!layers) return std::unexpected(layers.error());
  if (*layers != kRotaryLayers) {
    return invalid_input(
        "baichuan.block_count is {}; known is {} (the 7B; the 13B of 40 has ALiBi instead of "
        "rotary "
        "positions)",
        *layers, kRotaryLayers);
  }
  return build_decoder(source, {});
}

}  // namespace lockstep
