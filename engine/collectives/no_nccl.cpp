#include "engine/collectives/nccl.h"

namespace lockstep {

std::string nccl_absence() {
  return "in a build without NCCL: use a build with it";
}

std::string no_shared_gpus() {
  return nccl_absence();
}

std::string nccl_version() {
  return nccl_absence();
}

Result<NcclId> NcclRanks::make_id() {
  return machine_refused("GPUs of several hosts cannot be joined {}", nccl_absence());
}

Result<std::unique_ptr<NcclRanks>> NcclRanks::create_among(std::span<const int>, const NcclPlace&,
                                                           std::chrono::nanoseconds) {
  return machine_refused("GPUs of several hosts cannot be joined {}", nccl_absence());
}

Result<std::unique_ptr<NcclRanks>> NcclRanks::create(std::span<const int> gpus,
                                                     std::chrono::nanoseconds) {
  return machine_refused(
      "{} GPUs cannot be joined by NCCL: this program was built without it. Build it with "
      "LOCKSTEP_CUDA=ON and LOCKSTEP_NCCL=ON where NCCL is installed, or let sums go over peer "
      "memory alone",
      gpus.size());
}

}  // namespace lockstep
