#include "engine/placement/gpu_speeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/machine/device_choice.h"
#include "engine/placement/gpu_layout.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {
namespace {

// Less may lie in the second cache for the most part: B200's has 126 MB.
constexpr uint64_t kLeastBytes = uint64_t{512} << 20U;

bool are_alike(const Gpu& one, const Gpu& other) {
  return one.name == other.name && one.memory_bytes == other.memory_bytes;
}

// The GPU of each kind with the most free memory.
std::vector<const Gpu*> one_of_each_kind(const Topology& topology, std::span<const int> gpus) {
  std::vector<const Gpu*> kinds;
  for (const int index : gpus) {
    const Gpu& gpu = gpu_at(topology, index);
    const auto known =
        std::ranges::find_if(kinds, [&](const Gpu* kind) { return are_alike(gpu, *kind); });
    if (known == kinds.end()) {
      kinds.push_back(&gpu);
    } else if (gpu.free_bytes > (*known)->free_bytes) {
      *known = &gpu;
    }
  }
  return kinds;
}

// Why these cannot be measured; empty: they can.
std::string obstacle(const GpuPlatform* platform, std::span<const Gpu* const> gpus) {
  if (platform == nullptr) return "this program cannot ask them";
  for (const Gpu* gpu : gpus) {
    const uint64_t usable = usable_bytes(*gpu);
    if (usable >= kLeastBytes) continue;
    return fmt::format("gpu{} has {} MiB free for it, and it takes {}", gpu->index, usable >> 20U,
                       kLeastBytes >> 20U);
  }
  return {};
}

}  // namespace

bool are_alike(const Topology& topology, std::span<const int> gpus) {
  return std::ranges::all_of(gpus, [&](int gpu) {
    return are_alike(gpu_at(topology, gpu), gpu_at(topology, gpus.front()));
  });
}

Result<GpuSpeeds> measure_gpu_speeds(const GpuPlatform* platform, const Topology& topology,
                                     std::span<const int> gpus) {
  const std::vector<const Gpu*> kinds = one_of_each_kind(topology, gpus);
  if (std::string reason = obstacle(platform, kinds); !reason.empty()) {
    return gpu_speeds_by_clock(topology, gpus, std::move(reason));
  }
  GpuSpeeds speeds;
  speeds.measured = true;
  for (const Gpu* kind : kinds) {
    const auto speed = platform->measure_read(*platform, *kind);
    if (!speed) return std::unexpected(speed.error());
    spdlog::info("{} reads its memory at {:.0f} GB/s; {:.0f} by clock and width", gpu_title(*kind),
                 *speed / 1e9, kind->bytes_per_second / 1e9);
    for (const int gpu : gpus) {
      if (are_alike(gpu_at(topology, gpu), *kind)) speeds.bytes_per_second[gpu] = *speed;
    }
  }
  return speeds;
}

GpuSpeeds gpu_speeds_by_clock(const Topology& topology, std::span<const int> gpus,
                              std::string doubt) {
  GpuSpeeds speeds;
  for (const int gpu : gpus) {
    speeds.bytes_per_second[gpu] = gpu_at(topology, gpu).bytes_per_second;
  }
  spdlog::warn("how fast the GPUs' memory is goes by its clock and width, not measured: {}", doubt);
  speeds.doubt = std::move(doubt);
  return speeds;
}

}  // namespace lockstep
