// The counter of a step's tasks that have been taken.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/machine/signal_line.h"

namespace lockstep {

// Deals out a step's tasks to the workers of a rank, each task once. It pairs with nothing: what a
// task computes becomes visible at the barrier after the step.
struct alignas(kLineBytes) TaskCounter {
  std::atomic<uint32_t> next = 0;

  size_t take() { return next.fetch_add(1, std::memory_order_relaxed); }
};

}  // namespace lockstep
