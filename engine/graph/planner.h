// Turns a graph into a rank's plan.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/graph/graph.h"
#include "engine/graph/plan.h"

namespace lockstep {

struct PlanOptions {
  size_t batch_tokens = 512;  // tokens of the largest batch
  size_t logit_rows = 64;     // rows whose logits one pass may give
  KvFormat kv_format = KvFormat::kF16;
  size_t kv_pages = 0;
};

// Where the rank's arenas lie. All 0: nothing is taken yet; the plan is then good for its sizes
// only.
struct ArenaAddresses {
  uintptr_t weights = 0;
  uintptr_t scratch = 0;
  uintptr_t kv = 0;
};

// The same graph and options give the same plan but for the addresses. The graph must outlive the
// plan. CHECKs that the graph is one that the steps can express.
Plan make_plan(const Graph& graph, const PlanOptions& options, const ArenaAddresses& arenas = {});

}  // namespace lockstep
