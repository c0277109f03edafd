// Areas of a plan that are no value of the graph: what attention leaves between its parts, and what
// a GPU reads of a pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/graph/graph.h"
#include "engine/graph/plan.h"
#include "engine/graph/plan_options.h"
#include "engine/graph/split.h"
#include "engine/graph/value_buffers.h"

namespace lockstep {

// One area for all layers: a layer's chunks are merged before the next layer's begin. The capacity
// is every chunk of all the cache's pages, and a shared one per token; on a GPU every page, or all
// units that a token of each sequence can have, if these are fewer. `kv`: the rank's.
AttentionPartials place_partials(const Graph& graph, const Split& split, size_t rank,
                                 const PlanOptions& options, const KvLayout& kv,
                                 ValueBuffers& values);

// One for all layers: each has done with it before the next one routes. None without experts.
Routing place_routing(const Graph& graph, const PlanOptions& options, ValueBuffers& values);

// Never released: a pass's batch is read by all its steps. `attention_blocks`: the capacity of
// the partials. `finds_candidates`: whether this rank has the logits and searches them.
GpuAreas place_gpu_areas(const Graph& graph, const PlanOptions& options, size_t attention_blocks,
                         bool finds_candidates, ValueBuffers& values);

// Behind everything else of the scratch arena: what the plan's products of prompted tokens need
// beside. `scratch`: the arena's address. Once all steps are made.
void place_panel_areas(const GpuPanelLimits& limits, uintptr_t scratch, Plan& plan);

}  // namespace lockstep
