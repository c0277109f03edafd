// The rows that a pass gives to requests that generate nothing: hidden states, and a head's scores.
#include <algorithm>

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
  const size_t width = executor_.hidden_width();
  const size_t end = chunk.begin + chunk.count;
  size_t index = chunk.begin;
  while (index < end) {
    size_t count = 0;
    if (pooled.wants(index)) {
      const size_t most = std::min(end - index, executor_.hidden_rows_at_once());
      while (count < most && pooled.uses(index + count)) ++count;
    }
    if (count == 0) {
      ++index;
      continue;
    }
    hidden_rows_.resize(count * width);
    if (!executor_.read_hidden_rows(first_token + index - chunk.begin, hidden_rows_)) return;
    for (size_t row = 0; row < count; ++row) {
      const auto one = std::span<const float>(hidden_rows_).subspan(row * width, width);
      if (!all_finite(one)) return discard(generation);
      pooled.add(one);
    }
    index += count;
  }
  finish_pooled(generation, chunk);
}

}  // namespace lockstep
