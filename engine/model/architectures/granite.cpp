// Granite and MiniCPM: factors of embeddings, scores, the residual's additions and logits.
#include <optional>
#include <string>

#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

namespace {

// Models that were trained without positions say so.
Result<Model> build(const ModelSource& source, const std::string& architecture,
                    std::optional<Presence> experts) {
  const auto has_positions = source.file.boolean(architecture + ".rope.scaling.finetuned");
  if (!has_positions) return std::unexpected(has_positions.error());
  DecoderTraits traits = {
      .has_scales = true, .logit_scale = LogitScale::kDivides, .experts = experts};
  if (!has_positions->value_or(true)) traits.has_rotary = [](size_t) { return false; };
  return build_decoder(source, traits);
}

}  // namespace

Result<Model> build_granite(const ModelSource& source) {
  return build(source, "granite", std::nullopt);
}

Result<Model> build_granitemoe(const ModelSource& source) {
  return build(source, "granitemoe", Presence::kOptional);
}

// Files of its first converters have no factors, and mean others than none.
Result<Model> build_minicpm(const ModelSource& source) {
  const auto factor = source.file.number("minicpm.embedding_scale");
  if (!factor) return std::unexpected(factor.error());
  if (!*factor) {
    return invalid_input(
        "minicpm.embedding_scale is missing: the file is of a converter that left the factors out; "
        "convert the model again");
  }
  return build_decoder(source, {.has_scales = true, .logit_scale = LogitScale::kDivides});
}

}  // namespace lockstep
