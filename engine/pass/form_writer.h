// Hands on what a worker has computed: writes activations in the forms in which products consume
// them, sends them to the other ranks, and counts the time and bytes of that.
#pragma once

#include <cstddef>

#include "engine/base/range.h"
#include "engine/graph/step_buffers.h"
#include "engine/pass/pass.h"
#include "engine/pass/worker_counters.h"

namespace lockstep {

// Counts the time from its making to its end as spent in exchange.
class ExchangeTime {
 public:
  explicit ExchangeTime(const Pass& pass) : counters_(pass.counters) {}
  ExchangeTime(const ExchangeTime&) = delete;
  ExchangeTime& operator=(const ExchangeTime&) = delete;
  ~ExchangeTime() { counters_.exchange_ticks.add(ticks_now() - start_); }

 private:
  WorkerCounters& counters_;
  uint64_t start_ = ticks_now();
};

inline bool has_peers(const Pass& pass) {
  return pass.peers.distances.size() > 1 || pass.peers.has_others;
}

// Tells that this worker has computed `part` of `whole` of what the step brings to other hosts in
// these rows (RowCarrier).
void carry_rows(const Pass& pass, Range rows, size_t part, size_t whole);
// Waits for the rows before `end` that the step reads.
void await_rows(const Pass& pass, size_t end);
void await_all_rows(const Pass& pass);

// Pushes what this worker has just computed into the other ranks' copies.
void push(const Pass& pass, const void* own, size_t bytes);

// Columns of one row: `values` points at the first of them, `columns` counts from the output's
// first column. Only the forms that are read for tokens of this kind are written; they are pushed
// to the other ranks where the output says so.
void write_forms(const Pass& pass, const float* values, const FormsOutput& output, size_t row,
                 Range columns, bool generated);

// The rest of that where a kernel has written columns of `rows` as kBf16, which alone is read.
void complete_bf16(const Pass& pass, const FormsOutput& output, Range rows, Range columns);

// Writes the product of a residual's columns with the norm's weight, and the sums of their squares,
// for `tokens`, and pushes them as the output says. `residual`: the first token's row.
void write_norm(const Pass& pass, const float* residual, size_t residual_stride,
                const NormOutput& norm, Range tokens, Range columns);

// The same of a residual that has only the rows whose logits are asked for: of one of them.
void write_logit_norm(const Pass& pass, const float* residual, const NormOutput& norm, size_t row,
                      Range columns);

// The factor of a normed row of `columns`, from the sums of its chunks' squares.
float norm_factor(const float* chunk_sums, size_t columns, float epsilon);

// A row's mean, and the factor of its elements' distances from it.
struct Moments {
  float mean = 0;
  float factor = 0;
};
// Those of a row of `columns`, of the sums of its chunks and of their squares: chunk after chunk,
// the sums, and then the squares of the distances, each chunk's own and those of its mean (Chan,
// Golub, LeVeque, 1979).
Moments moments_of(const float* sums, const float* squares, size_t columns, float epsilon);

// The factors of a normed input's rows [rows): `factors` gets one per row.
void norm_factors(const Pass& pass, const NormFactor& norm, Range rows, float* factors);

}  // namespace lockstep
