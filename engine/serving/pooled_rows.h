// An embedding in the making: the hidden rows of a text, added up in order as passes give them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/model/pooling.h"

namespace lockstep {

class PooledRows {
 public:
  PooledRows(Pooling pooling, size_t token_count);

  // Whether the row of token `index` is still to be added. Rows come in order; those of tokens that
  // are computed again have been added before.
  bool wants(size_t index) const { return index == next_; }
  void add(std::span<const float> row);

  // Scaled to length 1; nothing if the rows hold what is no finite number, or nothing but zeros.
  std::optional<std::vector<float>> normalized() const;

 private:
  size_t next_;  // token whose row is added next
  std::vector<double> sums_;
};

}  // namespace lockstep
