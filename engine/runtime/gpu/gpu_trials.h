// Tries links between GPUs on the machine at hand, before the first pass: whether they work, and
// how fast sums over them are.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/collectives/gpu_all_reduce.h"
#include "engine/collectives/gpu_all_reduce_choice.h"
#include "engine/machine/gpu_device.h"

namespace lockstep {

// Tries whether GPUs that are said to reach one another's memory do. Drivers have been seen to
// promise what an IOMMU or PCIe's access control keeps from happening: what one GPU writes into
// another's memory never comes, and no call fails. NCCL asks the driver as well, and believes it.
//
// Each writes some words into every other's memory, which has to find them there. All of them have
// reached one another (GpuDevice::reach). Fails with kMachineRefused, naming the GPUs and the
// remedy. Takes little memory, and gives it back.
Result<void> try_gpu_links(std::span<GpuDevice* const> devices, std::chrono::nanoseconds deadline);

// Sums of so many bytes are timed, of twice as many, and so on: from one token's of a small model.
inline constexpr size_t kGpuSumTrialBytesMin = 4 << 10;
inline constexpr size_t kGpuSumTrialRounds = 5;

// A rank's times for sums of one size: nanoseconds of each round, per sum.
struct GpuSumRounds {
  using Times = std::array<uint64_t, kGpuSumTrialRounds>;

  size_t bytes = 0;
  Times one_shot_ns = {};
  Times two_shots_ns = {};
};

// One rank's part in timing sums over one another's memory, in one shot and in two.
struct GpuSumTrial {
  const GpuCollectives& collectives;
  const GpuPeers& peers;  // with `spent_ns`
  void* stream = nullptr;
  // In the memory of the rank's GPU, aligned to 16 bytes: their values are added up, whatever they
  // are.
  const float* partial = nullptr;
  float* output = nullptr;
  size_t bytes_max = 0;                      // of each, and the same on all ranks
  const std::function<Result<void>()> wait;  // for the stream
};

// As f32, by the GPU's clock, with what a rank waits for the others: some hundreds of sums of the
// least size, some dozens of the largest. All ranks at the same time, each by a thread of its own.
// Fails as `wait` does.
Result<std::vector<GpuSumRounds>> time_gpu_sums(const GpuSumTrial& trial);

// The median over the rounds, per size and way, of the slowest rank's time in each round.
std::vector<GpuSumTime> slowest_medians(std::span<const std::vector<GpuSumRounds>> ranks);

// For the log: "32 KiB 7.1/9.9 us, ...", one shot before two.
std::string sum_times_text(std::span<const GpuSumTime> times);

}  // namespace lockstep
