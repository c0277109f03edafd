// Rows that travel between hosts while the steps that write and read them compute.
#pragma once

#include <cstddef>

#include "engine/base/range.h"

namespace lockstep {

// Called by workers during a pass: nothing allocates. All return at once, and do nothing, where no
// rows travel so, and after another host was lost.
class RowCarrier {
 public:
  virtual ~RowCarrier() = default;

  // A worker of this host's rank `rank` has computed `part` of `whole` of what the step brings to
  // other hosts in each of these rows. The parts of a row that are told make up the whole, or
  // nothing of a row is told: it goes when the ranks have met.
  virtual void carry(size_t rank, Range rows, size_t part, size_t whole) = 0;

  // Returns when the rows before `end` that the step reads are here: what other hosts have
  // computed in the step before. Only a product is begun before they are (RowExchange).
  virtual void await(size_t end) = 0;

  // By each worker behind each step: returns when all of them are here, and those of this host have
  // left it.
  virtual void await_all() = 0;
};

}  // namespace lockstep
