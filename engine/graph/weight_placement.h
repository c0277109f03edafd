// The places of a rank's weights and of its part of the KV cache in its arenas.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/plan.h"
#include "engine/graph/plan_options.h"
#include "engine/graph/split.h"

namespace lockstep {

// The rank's slice of every weight, one after the other from `base` on, each aligned to
// weight_alignment(); what the rank does not hold has no bytes. By WeightId.
std::vector<WeightSlice> place_weights(const Graph& graph, const Split& split, size_t rank,
                                       uintptr_t base, WeightLayout layout = WeightLayout::kPanels);

size_t weight_alignment(WeightLayout layout);

// Bytes of the arena that these slices lie in.
size_t weight_arena_bytes(const std::vector<WeightSlice>& slices,
                          WeightLayout layout = WeightLayout::kPanels);

// The cache of the KV heads that the rank attends to.
KvLayout place_kv(const Graph& graph, const Split& split, size_t rank, KvFormat format,
                  size_t page_count, uintptr_t base);

}  // namespace lockstep
