#include "engine/serving/pooled_rows.h"

#include <cmath>

namespace lockstep {

PooledRows::PooledRows(Pooling pooling, size_t token_count)
    : next_(pooling == Pooling::kLast ? token_count - 1 : 0) {}

void PooledRows::add(std::span<const float> row) {
  sums_.resize(row.size());
  for (size_t column = 0; column < row.size(); ++column) sums_[column] += row[column];
  ++next_;
}

// A mean has the direction of the sum.
std::optional<std::vector<float>> PooledRows::normalized() const {
  double squares = 0;
  for (const double sum : sums_) squares += sum * sum;
  if (!std::isfinite(squares) || squares == 0) return std::nullopt;
  const double factor = 1 / std::sqrt(squares);
  std::vector<float> row;
  row.reserve(sums_.size());
  for (const double sum : sums_) row.push_back(static_cast<float>(sum * factor));
  return row;
}

}  // namespace lockstep
