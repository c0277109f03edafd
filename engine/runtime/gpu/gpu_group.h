// The ranks of a model that are on GPUs, as a whole: whether and how they reach one another, and
// with it where the logits and what ranks exchange lie.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/runtime/gpu/gpu_rank.h"

namespace lockstep {

class GpuGroup {
 public:
  // Used by one thread. `ranks`: in order of rank, outlive this; none: nothing here does anything.
  // `among_processors`: the model has ranks on processors as well.
  GpuGroup(std::vector<GpuRank*> ranks, bool among_processors);

  // Before any rank allocates. Lets each GPU reach the others' memory, and tries it; then says to
  // each rank what of its activations is to lie on the host. Fails with kMachineRefused where GPUs
  // only seem to reach one another, unless NCCL does without (GpuSettings::nccl_peer_access).
  Result<void> reach();

  // Once all ranks have allocated and before they get their plans: makes what GPUs exchange
  // through, memory or NCCL, and chooses which sums take one shot, where there is anything to
  // choose. `sizes`: rank 0's plan.
  Result<void> connect(const Plan& sizes);

  // Once all have their plans and before the first pass: the first exchanges, which connect them.
  Result<void> exchange_first();

  bool is_empty() const { return ranks_.empty(); }
  // Several ranks, all on GPUs, and each reaches the others' memory.
  bool shares_memory() const { return reached_.has_value(); }

 private:
  // True where the ranks exchange with one another alone.
  bool is_linked() const { return ranks_.size() > 1 && !among_processors_; }
  std::vector<GpuExecutor*> executors() const;
  Result<void> choose_shots(const Plan& sizes);
  // By each rank's own thread.
  Result<void> run(const std::function<Result<void>(size_t rank)>& job);

  std::vector<GpuRank*> ranks_;
  bool among_processors_;
  Result<void> reached_ = machine_refused("no GPUs are to reach one another");
  std::unique_ptr<NcclRanks> nccl_;  // none where they do not need it
};

}  // namespace lockstep
