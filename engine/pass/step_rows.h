// The rows of a step, and a worker's share of them.
#pragma once

#include <algorithm>
#include <cstddef>

#include "engine/base/range.h"
#include "engine/graph/step_buffers.h"
#include "engine/pass/pass.h"

namespace lockstep {

// `routing`: of kExperts alone.
class StepRows {
 public:
  StepRows(Rows rows, const Routing& routing, const Pass& pass)
      : rows_(rows), routing_(routing), pass_(pass) {}

  size_t count() const {
    if (rows_ == Rows::kExperts) return pass_.at(routing_.row_begin)[routing_.expert_count];
    return row_count(rows_, pass_).all;
  }
  // The token of the batch that the row is of.
  size_t token(size_t row) const {
    if (rows_ == Rows::kTokens) return row;
    if (rows_ == Rows::kLogits) return pass_.batch.logit_tokens[row];
    return pass_.at(routing_.row_tokens)[row];
  }
  // Whether the row is of a generated token.
  bool is_generated(size_t row) const {
    if (rows_ != Rows::kExperts) return row < row_count(rows_, pass_).generated;
    return pass_.at(routing_.row_tokens)[row] < pass_.batch.generated_tokens;
  }

 private:
  Rows rows_;
  const Routing& routing_;
  const Pass& pass_;
};

// This worker's contiguous, even share of `total` units.
inline Range share(size_t total, const Pass& pass) {
  return share(Range{0, total}, pass.worker, pass.worker_count);
}

// Calls work(row, columns) for this worker's share of rows x columns, cut at multiples of a chunk,
// so that a single row is shared as well.
template <typename Work>
void for_each_stretch(size_t rows, size_t columns, const Pass& pass, Work work) {
  const size_t chunks = (columns + kChunkColumns - 1) / kChunkColumns;
  const Range mine = share(Range{0, rows * chunks}, pass.worker, pass.worker_count);
  for (size_t unit = mine.begin; unit < mine.end;) {
    const size_t row = unit / chunks;
    const size_t first = unit % chunks;
    const size_t last = std::min(chunks, first + mine.end - unit);
    work(row, Range{first * kChunkColumns, std::min(columns, last * kChunkColumns)});
    unit += last - first;
  }
}

}  // namespace lockstep
