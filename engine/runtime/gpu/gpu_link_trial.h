// Tries whether GPUs that are said to reach one another's memory do. Drivers have been seen to
// promise what an IOMMU or PCIe's access control keeps from happening: what one GPU writes into
// another's memory never comes, and no call fails. NCCL asks the driver as well, and believes it.
#pragma once

#include <chrono>
#include <span>

#include "engine/base/result.h"
#include "engine/machine/gpu_device.h"

namespace lockstep {

// Each writes some words into every other's memory, which has to find them there. All of them have
// reached one another (GpuDevice::reach). Fails with kMachineRefused, naming the GPUs and the
// remedy. Takes little memory, and gives it back.
Result<void> try_gpu_links(std::span<GpuDevice* const> devices, std::chrono::nanoseconds deadline);

}  // namespace lockstep
