// Chooses the layers of a mixture whose experts lie on GPUs, where nodes are ranks beside them. A
// token reads all that is no expert, and of the experts few. So the GPUs have all that is no expert
// and the cache, and of the experts those of as many layers as they have space for beside; the
// nodes have those of the other layers, which are the first ones: behind them a GPU that is the
// only one computes by itself. Where GPUs have no space for all that is no expert, the nodes have
// all experts and a part of the rest.
#pragma once

#include <cstddef>

#include "engine/base/result.h"
#include "engine/model/architecture.h"
#include "engine/placement/machine.h"
#include "engine/placement/model_layout.h"
#include "engine/placement/settings.h"

namespace lockstep {

// Fails with kInvalidInput where a number of layers was asked for that GPUs cannot have here: the
// model is no mixture, `mixed` is false (no GPUs among nodes), there are no nodes' layers left, or
// a token goes to more experts than a GPU computes.
Result<void> check_expert_layers(const Graph& graph, const Settings& settings, bool mixed);

// `layout`: of such a model, with its places and plan options, without a split. Sets the split, how
// many layers' experts the GPUs have, and adds to the reason why; what the places share becomes
// experts on the nodes, and all else on the GPUs, as far as they have space, beside the settings'
// draft model, which it lays out too. What is asked for is
// taken even where there is no space: size_context() says so. Else GPUs get experts only where they
// read their memory faster than the nodes do theirs, as far as shares follow that, and an automatic
// context may have half of what they have left beside all else. Fails as split_graph() does, and
// with kMachineRefused where nodes' bandwidth cannot be measured.
Result<void> place_experts(const Model& model, const Settings& settings, const Machine& machine,
                           ModelLayout& layout);

}  // namespace lockstep
