// Granite and MiniCPM: factors of embeddings, scores, the residual's additions and logits.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_granite(const ModelSource& source) {
  return build_decoder(source, {.has_scales = true, .logit_scale = LogitScale::kDivides});
}

Result<Model> build_granitemoe(const ModelSource& source) {
  return build_decoder(
      source,
      {.has_scales = true, .logit_scale = LogitScale::kDivides, .experts = Presence::kRequired});
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
