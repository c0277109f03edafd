// Through what GPUs are used: their devices, their kernels and their maker's library for matrices.
// NVIDIA's by CUDA where the build has it; tests make one up.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "engine/base/result.h"
#include "engine/collectives/gpu_all_reduce.h"
#include "engine/collectives/gpu_all_reduce_choice.h"
#include "engine/collectives/nccl.h"
#include "engine/kernels/gpu_kernels.h"
#include "engine/kernels/gpu_matrix_library.h"
#include "engine/machine/gpu_device.h"

namespace lockstep {

struct Gpu;
struct GpuPlatform;

// How GPUs are used, for measurements and to find faults.
struct GpuSettings {
  static constexpr std::chrono::seconds kPassDeadline{4};

  bool launch_overlap = true;    // the next kernel's blocks may begin while those before end
  bool pass_ahead = true;        // a pass may be enqueued while the one before it runs
  bool nccl_peer_access = true;  // NCCL may use peer access; false: it goes through the host
  // The longest that a pass may take: then the GPU counts as lost. More for profilers and
  // sanitizers, under which kernels take many times as long.
  std::chrono::seconds pass_deadline = kPassDeadline;

  // The longest that a GPU waits for another rank's; less, so that it is told who is missing.
  std::chrono::nanoseconds sum_deadline() const {
    return std::chrono::nanoseconds(pass_deadline) * 3 / 4;
  }
};

// Bytes per second that a kernel of these reads of the GPU's memory (GpuMeter::read); takes a tenth
// of a second beside what opening the GPU takes. Fails with kMachineRefused.
Result<double> measure_gpu_read(const GpuPlatform& platform, const Gpu& gpu);

struct GpuPlatform {
  const GpuKernels* kernels = nullptr;
  const GpuCollectives* collectives = nullptr;
  Result<std::unique_ptr<GpuDevice>> (*open)(int gpu) = nullptr;
  // As open_cuda_matrix_library().
  Result<std::unique_ptr<GpuMatrixLibrary>> (*open_matrix_library)(
      int gpu, std::span<std::byte> workspace) = nullptr;
  // Whether its library is on this machine, without which no GPU can be a rank. Fails with
  // kMachineRefused. Null: it is.
  Result<void> (*find_matrix_library)() = nullptr;
  // NcclRanks::create(), of Gpu::index; null: there is no NCCL.
  Result<std::unique_ptr<NcclRanks>> (*join)(std::span<const int> gpus,
                                             std::chrono::nanoseconds deadline) = nullptr;
  // As nccl_absence(), of what `join` needs. Null: nothing.
  std::string (*join_absence)() = nullptr;
  // NcclRanks::make_id(), NcclRanks::create_among() and nccl_version(), for GPUs of several hosts;
  // null where `join` is, or where it joins those of one process alone.
  Result<NcclId> (*make_nccl_id)() = nullptr;
  Result<std::unique_ptr<NcclRanks>> (*join_among)(std::span<const int> gpus,
                                                   const NcclPlace& place,
                                                   std::chrono::nanoseconds deadline) = nullptr;
  std::string (*nccl_version)() = nullptr;
  // False: GPUs are used as though none reached another's memory.
  bool peer_access = true;
  // Chooses the way of each sum.
  GpuSumWay (*sum_way)(const GpuSumQuestion& question) = &gpu_sum_way;
  // Shares and estimates of speed follow it.
  Result<double> (*measure_read)(const GpuPlatform& platform, const Gpu& gpu) = &measure_gpu_read;
  // Sums of up to so many bytes over peer memory are timed at the load, and sum_way is told which
  // take one shot; fewer than kGpuSumTrialBytesMin: none is timed.
  size_t timed_sum_bytes_max = 0;
  // let_launches_overlap() of the kernels; null: their launches never do.
  void (*let_launches_overlap)(bool wanted) = nullptr;
  GpuSettings settings = {};
};

// As nccl_absence().
inline std::string absence_of_nccl(const GpuPlatform* platform) {
  if (platform == nullptr || platform->join == nullptr) {
    return "in a build without NCCL: use a build with it";
  }
  return platform->join_absence == nullptr ? "" : platform->join_absence();
}

// The same of what joins GPUs of several hosts.
inline std::string absence_among_hosts(const GpuPlatform* platform) {
  std::string absence = absence_of_nccl(platform);
  if (absence.empty() && platform->join_among == nullptr)
    absence = "without NCCL for several hosts";
  return absence;
}

// Null in a build without CUDA (no_cuda_platform.cpp), which knows no GPU to open either.
const GpuPlatform* cuda_platform();

}  // namespace lockstep
