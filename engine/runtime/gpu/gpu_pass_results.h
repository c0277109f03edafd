// The results of a pass that a GPU computes in several chunks: each chunk's are copied here before
// the next one's lie in their place. Of the rank that has the logits.
#pragma once

#include <cstddef>

#include "engine/base/range.h"
#include "engine/base/result.h"
#include "engine/kernels/gpu_candidates.h"
#include "engine/kernels/gpu_draw.h"
#include "engine/machine/gpu_device.h"
#include "engine/machine/node_memory.h"
#include "engine/operations/plan.h"

namespace lockstep {

// The bytes that it takes, of a plan whose passes may have several chunks, on a rank with logits of
// its own; else 0.
struct GpuResultBytes {
  size_t logits = 0;
  size_t hidden = 0;      // rows of the residual
  size_t candidates = 0;  // of the host's memory
};
GpuResultBytes gpu_result_bytes(const Plan& plan);

class GpuPassResults {
 public:
  // Takes the memory, on the host on `node`. Fails with kMachineRefused.
  Result<void> allocate(GpuDevice& device, const Plan& plan, int node);

  // The places of results.
  struct Places {
    const float* logits = nullptr;
    const float* hidden = nullptr;
    const std::byte* candidates = nullptr;
  };
  // Enqueues the copies of a chunk's results: of its tokens, and of its rows of logits.
  Result<void> keep(GpuStream& stream, const Plan& plan, const Places& chunk, Range tokens,
                    Range rows) const;

  // All that has been kept, of a pass's tokens and rows.
  Places places() const;

 private:
  GpuMemory logits_;
  GpuMemory hidden_;
  NodeMemory candidates_;
  GpuMemory pinned_;  // candidates_
};

}  // namespace lockstep
