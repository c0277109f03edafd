// Sums between the GPUs of one process by NVIDIA's NCCL, for what is too large to be sent from
// everyone to everyone. A build without NCCL says so when a communicator is asked for.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

#include "engine/base/result.h"

namespace lockstep {

// Sets what keeps NCCL's order of additions fixed, where the environment does not say otherwise:
// NCCL_ALGO=Ring, NCCL_PROTO=Simple, NCCL_NVLS_ENABLE=0 (sums formed inside the switch have no
// fixed order). A communicator's configuration has no place for them. Call it from main() before
// there are threads and before any communicator: setenv() bears no company.
//
// What holds then: the same message between the same GPUs gives the same bits in every run, and on
// every rank. With two ranks these are the bits of gpu_all_reduce() with f32, there being one order
// only. With more, an element's order depends on where in the message it lies and on the message's
// size: other bits than gpu_all_reduce()'s, and a token's depend on its place in the batch.
void fix_nccl_order();

// One communicator per rank, created once. Each rank's calls come from one thread at a time; a
// rank's GPU is the current one of the thread that calls for it. Nothing blocks for longer than the
// deadline. After any error but kInvalidInput all are aborted: kernels that wait on the GPUs end,
// and every later call fails.
class NcclRanks {
 public:
  // `gpus`: the CUDA device of each rank. Leaves the current device as it was.
  static Result<std::unique_ptr<NcclRanks>> create(std::span<const int> gpus,
                                                   std::chrono::nanoseconds deadline);

  virtual ~NcclRanks() = default;

  // values[i] = the sum over all ranks of their values[i], f32, in place, enqueued on `stream` (a
  // cudaStream_t). All ranks give the same count in the same order of calls; who contributes
  // nothing gives zeros. Call it once outside a graph before it is captured: the first time
  // connects the ranks.
  virtual Result<void> all_reduce(size_t rank, void* stream, float* values, size_t count) = 0;

  // Waits until all that is enqueued on `stream` has run, at most until the deadline.
  virtual Result<void> wait(size_t rank, void* stream) = 0;

  // From any thread, however often.
  virtual void abort() = 0;
};

}  // namespace lockstep
