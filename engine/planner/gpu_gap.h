// Finds the first operation of a graph that GPUs cannot compute.
#pragma once

#include <optional>
#include <string_view>

#include "engine/graph/fusion/rules.h"
#include "engine/graph/graph.h"

namespace lockstep {

// The name of the first operation whose step GPUs have no kernel for; none: they compute the graph,
// one alone and, unless `alone`, several that sum their parts. `without`: the rules that are
// switched off.
std::optional<std::string_view> find_gpu_gap(const Graph& graph, const FusionSet& without,
                                             bool alone = false);

}  // namespace lockstep
