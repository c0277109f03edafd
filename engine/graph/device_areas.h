// Areas of a plan that are no value of the graph and that only one kind of device has. They serve
// all layers: each layer is done with them before the next one begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "engine/graph/arenas.h"
#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/gpu_panel.h"

namespace lockstep {

// Only a pass's first so many tokens have their keys cut into chunks: of more, each worker has
// enough.
inline constexpr size_t kSplitTokens = 64;

// Partial results of chunks of long sequences on processors.
struct NodePartials {
  ArenaOffset<float> rows = {};  // one per block of queries and KV head
  size_t stride = 0;             // floats
  size_t block_count = 0;        // capacity in blocks
  // [token][KV head]: chunks that are done. The worker of the last chunk merges all of them.
  ArenaOffset<uint32_t> arrived = {};

  friend bool operator==(const NodePartials&, const NodePartials&) = default;
};

struct NodeAreas {
  NodePartials partials;  // none: the rank attends to no head
  // Experts' rows, beside Routing; none without experts.
  // [expert]: its rows before this one are of generated tokens.
  ArenaOffset<uint32_t> generated_end = {};
  ArenaOffset<float> row_weights = {};  // [row]

  friend bool operator==(const NodeAreas&, const NodeAreas&) = default;
};

// Partial results of generated tokens' units (gpu_token_units()) on a GPU.
struct GpuPartials {
  ArenaOffset<float> rows = {};  // [unit]: the outputs of all the rank's query heads, without gaps
  ArenaOffset<float> sums = {};  // [unit][query head]: maximum and sum
  ArenaOffset<uint32_t> arrived = {};  // [unit][query head]; 0 between launches
  size_t unit_count = 0;               // capacity
  size_t head_count = 0;               // query heads of the rank

  friend bool operator==(const GpuPartials&, const GpuPartials&) = default;
};

// One pass's finds are read while the next one computes.
inline constexpr size_t kGpuPassesAtOnce = 2;

struct GpuAreas {
  ArenaOffset<std::byte> batch = {};     // a pass's batch, as gpu_batch_at() lays it out
  GpuBatchLimits limits;                 // its capacity
  ArenaOffset<double> frequencies = {};  // all RotaryTableSteps', in order
  ArenaOffset<float> constants = {};     // gpu_constants() of the plan; none: it has none
  GpuPartials partials;                  // none: the rank attends to no head
  ArenaOffset<uint32_t>
      choice_rows;  // [token][chosen_count]: the choice's row; none without experts
  // The search for logits' candidates and draws, on rank 0. Unused where the logits are the host's:
  // among processors, or GPUs that do not reach one another's memory.
  ArenaOffset<uint32_t> candidate_words = {};
  ArenaOffset<float> logit_maxima = {};  // [logit row]
  ArenaOffset<double> draw_sums = {};    // [logit row], gpu_draw_blocks() each
  // [logit row]: what was picked, for the embedding of a pass that begins before the host knows.
  ArenaOffset<uint32_t> picks = {};
  size_t candidate_bytes = 0;  // of the host's memory, for what a pass finds; 0 but on rank 0
  // Products of prompted tokens: a panel of unpacked weights, their sums for all of a pass's
  // tokens, and kGpuLibraryBytes. None where no weights are unpacked.
  GpuPanelLimits panel_limits;
  ArenaOffset<uint16_t> panel = {};
  // Products of generated tokens, which come before, use them as GpuProduct::partials.
  ArenaOffset<float> panel_sums = {};
  size_t panel_sum_floats = 0;  // capacity
  ArenaOffset<std::byte> library = {};

  friend bool operator==(const GpuAreas&, const GpuAreas&) = default;
};

using DeviceAreas = std::variant<NodeAreas, GpuAreas>;

}  // namespace lockstep
