// An embedding or a rank in the making: the rows of a text, added up in order as passes give them.
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/model/pooling.h"

namespace lockstep {

class PooledRows {
 public:
  PooledRows(Pooling pooling, size_t token_count);

  // Whether the row of token `index` is one of those that are pooled.
  bool uses(size_t index) const { return index >= first_ && index < end_; }
  // Whether the row of token `index` is still to be added. Rows come in order; those of tokens that
  // are computed again have been added before.
  bool wants(size_t index) const { return index == next_ && uses(index); }
  void add(std::span<const float> row);

  // Scaled to length 1; nothing if the rows hold what is no finite number, or nothing but zeros.
  std::optional<std::vector<float>> normalized() const;
  // Not scaled; nothing if the rows hold what is no finite number.
  std::optional<std::vector<float>> mean() const;
  // As they are.
  std::vector<float> sums() const { return {sums_.begin(), sums_.end()}; }

 private:
  size_t first_;  // the tokens whose rows are pooled
  size_t end_;
  size_t next_;  // token whose row is added next
  std::vector<double> sums_;
};

inline PooledRows::PooledRows(Pooling pooling, size_t token_count)
    : first_(pooling == Pooling::kLast ? token_count - 1 : 0),
      end_(pooling == Pooling::kFirst ? 1 : token_count),
      next_(first_) {}

inline void PooledRows::add(std::span<const float> row) {
  sums_.resize(row.size());
  for (size_t column = 0; column < row.size(); ++column) sums_[column] += row[column];
  ++next_;
}

inline std::optional<std::vector<float>> PooledRows::mean() const {
  const auto count = static_cast<double>(next_ - first_);
  std::vector<float> row;
  row.reserve(sums_.size());
  for (const double sum : sums_) {
    if (!std::isfinite(sum)) return std::nullopt;
    row.push_back(static_cast<float>(sum / count));
  }
  return row;
}

// A mean has the direction of the sum.
inline std::optional<std::vector<float>> PooledRows::normalized() const {
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
