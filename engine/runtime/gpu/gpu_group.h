// The ranks of a model that are on GPUs, as a whole: whether and how they reach one another, and
// with it where the logits and what ranks exchange lie.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/runtime/gpu/gpu_rank.h"
#include "engine/runtime/hosts/nccl_among_hosts.h"

namespace lockstep {

class GpuGroup {
 public:
  // How ranks divide a model: with processors among them, each layer between all, or by layers.
  enum class Division : uint8_t { kAmongProcessors, kOfLayers, kByLayers };

  // Used by one thread. `ranks`: in order of rank, outlive this; none: nothing here does anything.
  GpuGroup(std::vector<GpuRank*> ranks, Division division);

  // Before any rank allocates. Lets each GPU reach the others' memory, and tries it; then says to
  // each rank what of its activations is to lie on the host. Fails with kMachineRefused where GPUs
  // only seem to reach one another, unless NCCL does without (GpuSettings::nccl_peer_access).
  Result<void> reach();

  // Once all ranks have allocated and before they get their plans: makes what GPUs exchange
  // through, memory or NCCL, and chooses which sums take one shot, where there is anything to
  // choose; or the borders between their layers. `sizes`: rank 0's plan.
  Result<void> connect(const Plan& sizes);

  // Instead of both where other hosts' GPUs compute as well: `plans` are of all ranks of all hosts.
  // Each keeps its part of the logits to itself, and NCCL joins all of them.
  void keep_logits_apart();
  Result<void> connect_hosts(HostGroup& group, std::span<const Plan> plans, const HostRanks& ranks);
  // After a group of hosts has failed, between passes: whether the GPUs can go on
  // (GpuExecutor::recover()); then the same with another group, and the first exchanges.
  Result<void> recover();
  Result<void> join_again(HostGroup& group);

  // Once all have their plans and before the first pass: the first exchanges, which connect them.
  Result<void> exchange_first();

  bool is_empty() const { return ranks_.empty(); }
  // Several ranks, all on GPUs, and each reaches the others' memory.
  bool shares_memory() const { return reached_.has_value(); }

 private:
  bool is_among_processors() const { return division_ == Division::kAmongProcessors; }
  // True where the ranks exchange with one another alone.
  bool is_linked() const { return ranks_.size() > 1 && !is_among_processors(); }
  std::vector<GpuExecutor*> executors() const;
  Result<void> choose_shots(const Plan& sizes);
  // By each rank's own thread.
  Result<void> run(const std::function<Result<void>(size_t rank)>& job);

  std::vector<GpuRank*> ranks_;
  Division division_;
  Result<void> reached_ = machine_refused("no GPUs are to reach one another");
  std::unique_ptr<NcclRanks> nccl_;             // none where they do not need it
  std::unique_ptr<NcclAmongHosts> nccl_hosts_;  // instead, among several hosts
  std::vector<std::unique_ptr<GpuBorder>> borders_;
};

}  // namespace lockstep
