// The decoder that most families share: layers of attention and of a feed-forward, each behind a
// norm and added to the residual; a norm and the output matrix at the end.
#pragma once

#include "engine/base/result.h"
#include "engine/model/architectures/decoder_traits.h"
#include "engine/model/model.h"

namespace lockstep {

Result<Model> build_decoder(const ModelSource& source, const DecoderTraits& traits);

}  // namespace lockstep
