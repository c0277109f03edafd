// The rows that a pass gives to requests that generate nothing: hidden states, and a head's scores.
#include "engine/serving/engine_loop.h"

namespace lockstep {

// States and scores are wanted of the tokens that are pooled.
bool EngineLoop::wants_logits(const Generation& generation, const Chunk& chunk,
                              size_t index) const {
  if (index < chunk.logits_begin) return false;
  return !generation.pooled || generation.pooled->uses(index);
}

// The logits are states or scores.
void EngineLoop::use_states(Generation& generation, const Chunk& chunk, size_t row) {
  PooledRows& pooled = *generation.pooled;
  for (size_t index = chunk.begin; index < chunk.begin + chunk.count; ++index) {
    if (!wants_logits(generation, chunk, index)) continue;
    const auto states = executor_.logits(row++).all();
    if (!states) return;  // the executor has failed
    if (!pooled.wants(index)) continue;
    if (!all_finite(*states)) return discard(generation);
    pooled.add(*states);
  }
  finish_pooled(generation, chunk);
}

// The generation may be gone after this.
void EngineLoop::finish_pooled(Generation& generation, const Chunk& chunk) {
  if (!chunk.sample) return;
  if (!generation.finish_pooled()) return discard(generation);
  unusable_streak_.note_end(generation.finished());
  retire(generation);
}

void EngineLoop::use_hidden_rows(Generation& generation, const Chunk& chunk, size_t first_token) {
  PooledRows& pooled = *generation.pooled;
  for (size_t index = chunk.begin; index < chunk.begin + chunk.count; ++index) {
    if (!pooled.wants(index)) continue;
    if (!executor_.read_hidden_row(first_token + index - chunk.begin, hidden_row_)) return;
    if (!all_finite(hidden_row_)) return discard(generation);
    pooled.add(hidden_row_);
  }
  finish_pooled(generation, chunk);
}

}  // namespace lockstep
