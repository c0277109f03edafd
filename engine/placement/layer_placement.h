// Chooses which layers each GPU has where they have whole ones (--strategy layers): the fastest
// choice of those that the GPUs have memory for.
#pragma once

#include "engine/base/result.h"
#include "engine/graph/split.h"
#include "engine/model/architecture.h"
#include "engine/placement/machine.h"
#include "engine/placement/model_layout.h"
#include "engine/placement/settings.h"

namespace lockstep {

// `layout`: with its places, plan options and draft model, without a split. Ranks have space for
// their layers beside a cache for the context that is asked for, or else for the least one that is
// chosen by itself, or for one page. Where nothing fits, the fastest split: size_context() says
// what it lacks. Fails as split_graph() does.
Result<Split> place_layers(const Model& model, const Settings& settings, const Machine& machine,
                           const ModelLayout& layout);

}  // namespace lockstep
