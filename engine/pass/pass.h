// One worker's view of a pass, and the counters by which workers share a step's tasks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "engine/collectives/shared_memory.h"
#include "engine/graph/arenas.h"
#include "engine/graph/device_areas.h"
#include "engine/graph/kv_layout.h"
#include "engine/graph/step_buffers.h"
#include "engine/kernels/kernel_table.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/machine/barrier.h"
#include "engine/machine/signal_line.h"
#include "engine/pass/batch.h"
#include "engine/pass/pass_layout.h"
#include "engine/pass/row_carrier.h"
#include "engine/pass/worker_counters.h"

namespace lockstep {

// Deals out a step's tasks to the workers of a rank, each task once. It pairs with nothing: what a
// task computes becomes visible at the barrier after the step.
struct alignas(kLineBytes) TaskCounter {
  std::atomic<uint32_t> next = 0;

  size_t take() { return next.fetch_add(1, std::memory_order_relaxed); }
};

struct Pass {
  const KvLayout& kv;  // the rank's
  const DeviceAreas& device_areas;
  const ArenaAddresses& addresses;  // of the plan's offsets
  const Peers& peers;
  const KernelTable& kernels;
  const Batch& batch;
  const PassLayout& layout;
  Barrier& barrier;  // the rank's; for steps in several phases
  WorkerCounters& counters;
  size_t worker = 0;
  size_t worker_count = 1;
  size_t panel_streams = 1;  // as in MatmulArguments
  // The ways of rows between hosts: of those that the step at hand reads (null where no other host
  // computes), and of those that it brings to other ranks (null where it brings none).
  RowCarrier* read_rows = nullptr;
  RowCarrier* written_rows = nullptr;

  template <typename T>
  T* at(const ArenaOffset<T>& offset) const {
    return addresses.at(offset);
  }
  PackedMatrix matrix_at(const PlannedMatrix& matrix) const {
    return {matrix.format, matrix.rows, matrix.columns, at(matrix.data)};
  }
  // Those of processors.
  const NodeAreas& areas() const { return std::get<NodeAreas>(device_areas); }
};

// The number of rows that a step runs over; the first `generated` are of generated tokens.
struct RowCount {
  size_t all = 0;
  size_t generated = 0;
};
inline RowCount row_count(Rows rows, const Pass& pass) {
  if (rows == Rows::kTokens) return {pass.batch.tokens.size(), pass.batch.generated_tokens};
  return {pass.batch.logit_tokens.size(), pass.layout.generated_logits()};
}

// Between two phases of a step.
inline void meet_rank(const Pass& pass) {
  const uint64_t arrived = ticks_now();
  pass.barrier.arrive_and_wait(pass.worker);
  pass.counters.wait_ticks.add(ticks_now() - arrived);
  pass.counters.barriers.add(1);
}

}  // namespace lockstep
