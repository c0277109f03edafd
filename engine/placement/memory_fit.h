// Whether a model that is laid out finds space, and how long a context there is space for. Decided
// on paper, before anything is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/kv_layout.h"
#include "engine/interface/machine_plan.h"
#include "engine/machine/rank_places.h"
#include "engine/model/architecture.h"
#include "engine/placement/machine.h"
#include "engine/placement/model_layout.h"
#include "engine/placement/settings.h"

namespace lockstep {

// The memory that a rank takes beside weights, cache and activations: on a GPU, and where a host
// exchanges with others.
std::vector<MachinePlan::Need> other_needs(const ModelLayout& layout, size_t rank);

// Pages of tokens that a sequence of so many has.
size_t pages_for(size_t tokens);

// KV pages that hold full sequences, or as many as are asked for.
size_t wanted_pages(const Settings& settings, const KvPageCount& count, size_t context_tokens);

// The slots for states beside a KV cache of so many bytes: one for each sequence that runs at once,
// and for checkpoints an eighth of the cache's memory, but at least 2 for each and at most 32.
// `slot_bytes`: of all ranks, like `kv_bytes`.
size_t state_slots_beside(uint64_t kv_bytes, uint64_t slot_bytes, size_t sequence_count);

// The sizes of the layout's ranks with other options and so many pages of the cache.
std::vector<RankSizes> layout_sizes(const Model& model, const ModelLayout& layout,
                                    const PlanOptions& options, size_t kv_pages);

// The first rank whose arenas do not find space; none: all of them fit.
std::optional<size_t> first_misfit(const ModelLayout& layout, const Machine& machine);

// How long a sequence may get and how many pages that takes; all arenas have space then. Fails with
// kMachineRefused when the model does not fit, naming the node, what is needed and what there is;
// with_memory_remedies() adds what to do.
Result<void> size_context(const Model& model, const Settings& settings, const Machine& machine,
                          ModelLayout& layout);

// Whether size_context() would succeed, for trials: nothing is logged.
bool fits_memory(const Model& model, const Settings& settings, const Machine& machine,
                 ModelLayout& layout);

}  // namespace lockstep
