#include "engine/collectives/nccl.h"

namespace lockstep {

bool has_nccl() {
  return false;
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
