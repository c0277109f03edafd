// Granite: factors of embeddings, scores, the residual's additions and logits.
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

}  // namespace lockstep
