// Baichuan and Refact: Llama. Baichuan 13B and Refact have ALiBi (a bias by distance) instead of
// rotary positions; of Baichuan a file does not say so but by its number of layers.
#include "engine/model/architectures/decoder.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/model.h"

namespace lockstep {
namespace {

constexpr float kAlibiBias = 8;

}  // namespace

Result<Model> build_baichuan(const ModelSource& source) {
  constexpr size_t kRotaryLayers = 32;
  constexpr size_t kAlibiLayers = 40;
  const auto layers = read_layer_count(source.file, "baichuan");
  if (!layers) return std::unexpected(layers.error());
  if (*layers != kRotaryLayers && *layers != kAlibiLayers) {
    return invalid_input(
        "baichuan.block_count is {}; known are {} (the 7B, with rotary positions) and {} (the 13B, "
        "with ALiBi instead)",
        *layers, kRotaryLayers, kAlibiLayers);
  }
  return build_decoder(source, {.alibi_bias = *layers == kAlibiLayers ? kAlibiBias : 0});
}

Result<Model> build_refact(const ModelSource& source) {
  return build_decoder(source, {.alibi_bias = kAlibiBias});
}

}  // namespace lockstep
