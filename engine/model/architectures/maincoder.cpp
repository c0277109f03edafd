// Maincoder: heads are normalized behind their rotary positions.
#include "engine/model/architectures/decoder.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_maincoder(const ModelSource& source) {
  return build_decoder(source, {.head_norms = {.presence = Presence::kRequired, .are_last = true}});
}

}  // namespace lockstep
