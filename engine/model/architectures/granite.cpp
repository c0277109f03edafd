// Granite and MiniCPM: factors of embeddings, scores, the residual's additions and logits. MiniCPM
// 3 has latent attention, and factors that its files do not say.
#include <cmath>
#include <optional>
#include <string>

#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

namespace {

// Models that were trained without positions say so.
Result<Model> build(const ModelSource& source, const std::string& architecture,
                    std::optional<Presence> experts,
                    std::optional<StateSpaces> state_spaces = std::nullopt) {
  const auto has_positions = source.file.boolean(architecture + ".rope.scaling.finetuned");
  if (!has_positions) return std::unexpected(has_positions.error());
  DecoderTraits traits = {.has_scales = true,
                          .logit_scale = LogitScale::kDivides,
                          .state_spaces = state_spaces,
                          .experts = experts};
  if (!has_positions->value_or(true)) traits.has_rotary = [](size_t) { return false; };
  return build_decoder(source, traits);
}

// Those that MiniCPM's models were trained with. Hu et al.: MiniCPM (arXiv 2404.06395), which gives
// them as scale_emb, scale_depth and dim_model_base.
DecoderTraits with_minicpm_factors(DecoderTraits traits) {
  traits.embedding_factor = [](const DecoderSizes&) { return 12.0F; };
  traits.residual_factor = [](const DecoderSizes& sizes) {
    return 1.4F / std::sqrt(static_cast<float>(sizes.layers));
  };
  traits.logit_factor = [](const DecoderSizes& sizes) {
    return 256 / static_cast<float>(sizes.columns);
  };
  return traits;
}

}  // namespace

Result<Model> build_granite(const ModelSource& source) {
  return build(source, "granite", std::nullopt);
}

Result<Model> build_granitemoe(const ModelSource& source) {
  return build(source, "granitemoe", Presence::kOptional);
}

// Granite 4: state spaces in most layers.
Result<Model> build_granitehybrid(const ModelSource& source) {
  return build(source, "granitehybrid", Presence::kOptional, StateSpaces::kInPlace);
}

// Files of MiniCPM's first converters have no factors: those of all models of that time are meant.
Result<Model> build_minicpm(const ModelSource& source) {
  const auto factor = source.file.number("minicpm.embedding_scale");
  if (!factor) return std::unexpected(factor.error());
  if (!*factor) return build_decoder(source, with_minicpm_factors({}));
  return build_decoder(source, {.has_scales = true, .logit_scale = LogitScale::kDivides});
}

Result<Model> build_minicpm3(const ModelSource& source) {
  return build_decoder(source, with_minicpm_factors({.rotary_pairs = RotaryPairs::kHalves,
                                                     .has_latent_attention = true}));
}

}  // namespace lockstep
