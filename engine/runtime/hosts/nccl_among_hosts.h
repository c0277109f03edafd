// The ranks of this host's GPUs among those of several hosts, by NCCL: one communicator of all of
// them for each group that the hosts form. The leader makes its id and hands it to the others over
// their control connections. When the group fails the communicator is aborted, so that no GPU waits
// for a host that is lost; the next group has another, and those that compute need not know.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/result.h"
#include "engine/collectives/nccl.h"
#include "engine/hosts/host_group.h"
#include "engine/runtime/gpu/gpu_platform.h"
#include "engine/runtime/hosts/host_rounds.h"

namespace lockstep {

class NcclAmongHosts final : public NcclRanks {
 public:
  // `gpus`: of this host's ranks. The platform must outlive this.
  NcclAmongHosts(const GpuPlatform& platform, std::vector<int> gpus, HostRanks ranks);

  // Between passes: makes the communicator of this group. All hosts call it; until the last one
  // has, the others wait, as HostGroup::gather() does, and from then on for the deadline at most.
  // Fails with kMachineRefused, naming the host that is to blame, where NCCL cannot be had, has
  // another version on another host, does not join the GPUs in time, or what came is no id; as the
  // group where that fails. Where NCCL fails here, the group fails with it.
  Result<void> join(HostGroup& group, std::chrono::nanoseconds deadline);

  // From join() on. Ranks have their numbers among all hosts'.
  void set_deadline(std::chrono::nanoseconds deadline) override;
  void all_reduce(size_t rank, void* stream, const float* values, float* sums,
                  size_t count) override;
  void exchange(size_t rank, void* stream, std::span<const NcclTransfer> transfers) override;
  std::chrono::nanoseconds time_spent(size_t rank) override;
  Result<void> check(size_t rank) override;
  void abort(const Error& reason) override;

 private:
  Json offer(const HostGroup& group) const;

  const GpuPlatform& platform_;
  std::vector<int> gpus_;
  HostRanks ranks_;
  // Shared with the group at hand, whose thread aborts it: either may end first.
  std::shared_ptr<NcclRanks> joined_;
};

// The id in what the leader has sent: as many bytes as an id has, in hexadecimal digits. Fails with
// kMachineRefused for anything else.
Result<NcclId> read_nccl_id(const Json& sent);
std::string nccl_id_text(const NcclId& id);

}  // namespace lockstep
