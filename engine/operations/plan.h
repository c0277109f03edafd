// One rank's share of a graph: a flat list of steps, in which memory is named by arena and offset
// (arenas.h). A plan is a value: it holds no address, is made once, before any memory is taken, and
// can be compared and printed (plan_text()). The rank that runs it looks its addresses up: on
// processors where a step needs them, on a GPU once, when the steps become launches.
//
// All workers of the rank walk the plan; a barrier follows each step, over all ranks where one has
// written what another reads. All ranks' plans have the same steps in the same order. The steps'
// runner reads what varies from pass to pass (tokens, positions, pages, which rows want logits)
// from a Batch.
//
// A layer of the usual decoder is five steps:
//   product    queries, keys and values of the normed residual
//   attend     heads' norms and rotary positions, the cache, attention
//   product    the attention's output, added to the residual; the next norm's product and sums
//   product    gate and up of the normed residual, and the gate's activation
//   product    down, added to the residual; the next norm's product and sums
// A norm needs no step of its own: the worker that computed columns of the residual multiplies them
// with the norm's weight, converts them to the forms in which they are consumed, and leaves the
// sums of their squares; their reader multiplies its results with the factor that these sums
// give.
//
// In a mixture of experts, four steps take the place of the last two:
//   product    every expert's score
//   route      which experts a token goes to
//   experts    gate and up of each expert's tokens, and the gate's activation
//   experts    down, weighted, added to the residual; the next norm's product and sums
//
// A step with `gather` pushes what it has computed into every other rank's copy of the same buffer;
// such buffers lie in the exchange arenas.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/base/range.h"
#include "engine/graph/arenas.h"
#include "engine/graph/device_areas.h"
#include "engine/graph/graph.h"
#include "engine/graph/kv_layout.h"
#include "engine/operations/steps.h"

namespace lockstep {

// Rows [row_begin, row_end) and of them columns [column_begin, column_end) of a weight, held by
// this rank: a matrix as its device reads it, a vector as f32 (row 0 to 1). Nothing is held where
// either is empty. Columns begin and end at multiples of the format's block, or at the end.
struct WeightSlice {
  WeightId weight = kNone;
  size_t row_begin = 0;
  size_t row_end = 0;
  size_t column_begin = 0;
  size_t column_end = 0;
  size_t offset = 0;  // in the arena of weights, bytes
  size_t size_bytes = 0;

  friend bool operator==(const WeightSlice&, const WeightSlice&) = default;
};

// The residual of every token of a pass as the last norm reads it: hidden rows are made of it. It
// stays in its place until the next pass begins. Each rank has the columns that it has computed.
struct HiddenRows {
  ArenaOffset<const float> residual = {};  // [token], from columns.begin on
  size_t residual_stride = 0;              // floats
  Range columns;  // all ranks' follow one another; empty: other ranks have them
  ArenaOffset<const float> norm_weight = {};  // of `columns`
  size_t width = 0;  // of a whole row; 0: the graph's logits are not of a norm
  float epsilon = 0;

  friend bool operator==(const HiddenRows&, const HiddenRows&) = default;
};

// The rows of a value that outlives the pass (Graph::keep()): they stay in their place until the
// next pass begins. Each rank has the columns that it has computed.
struct KeptRows {
  ArenaOffset<const float> rows = {};  // [token], from columns.begin on
  size_t stride = 0;                   // floats
  Range columns;     // all ranks' follow one another; empty: other ranks have them
  size_t width = 0;  // of a whole row

  friend bool operator==(const KeptRows&, const KeptRows&) = default;
};

// The rank's part of the states that sequences have in the layers that keep some. A slot is one
// sequence's, of all these layers; its parts lie in the scratch arena, where nothing else ever
// does.
struct StateLayout {
  size_t slot_count = 0;  // 0: the graph has no states
  size_t slot_bytes = 0;  // 0: it has some, and the rank no part of them

  size_t size_bytes() const { return slot_count * slot_bytes; }
  friend bool operator==(const StateLayout&, const StateLayout&) = default;
};

struct Plan {
  size_t rank = 0;
  size_t rank_count = 1;
  std::vector<Step> steps;
  std::vector<WeightSlice> weights;  // by WeightId
  KvLayout kv;
  StateLayout states;
  HiddenRows hidden;
  std::vector<KeptRows> kept;  // as Graph::kept()
  size_t given_columns = 0;    // of the rows that batches bring with tokens; 0: they bring none
  DeviceAreas areas;
  // [logit row][vocabulary], of rank 0: in GPU memory where all are GPUs that reach one another's.
  ArenaOffset<float> logits = {};
  size_t logits_stride = 0;  // floats
  size_t vocabulary_size = 0;
  size_t batch_tokens = 0;
  size_t chunk_tokens = 0;  // of them that are computed at once: activations have rows for these
  size_t logit_rows = 0;
  size_t weight_bytes = 0;  // of the arenas; the cache's is kv.size_bytes()
  size_t scratch_bytes = 0;
  size_t exchange_bytes = 0;
  size_t logits_bytes = 0;  // 0 but on rank 0

  friend bool operator==(const Plan&, const Plan&) = default;
};

// The plan as text, to compare plans by or to keep a digest of one: everything that it says, its
// sizes, the device's areas and the weights' slices, then one line per step with its rows, buffers
// (arena+offset/stride) and sizes. Plans that differ have different texts, and equal ones the same.
std::string plan_text(const Plan& plan);

}  // namespace lockstep
