#include "engine/placement/gpu_traits.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/kernels/attention.h"
#include "engine/kernels/gpu_experts.h"
#include "engine/kernels/gpu_heads.h"
#include "engine/kernels/gpu_tile.h"
#include "engine/machine/device_choice.h"
#include "engine/planner/gpu_gap.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {
namespace {

// Dimensions of a head that lie together in the cache of a GPU.
constexpr size_t kHeadUnit = 8;

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

Result<void> check_gpu_formats(const Graph& graph) {
  for (const Weight& weight : graph.weights()) {
    if (!weight.is_matrix || has_gpu_kernels(weight.format)) continue;
    return invalid_input(
        "tensor {} is in {}, for which GPUs have no kernels: use --devices cpu, or a file in "
        "another format",
        weight.name, traits(weight.format).name);
  }
  return {};
}

Result<void> check_gpu_cache(const KvFormats& format, std::string_view name) {
  if (format.keys == format.values && format.keys != KvFormat::kQ4_0 &&
      format.keys != KvFormat::kQ4H) {
    return {};
  }
  return invalid_input(
      "GPUs have no kernels for KV format {}: use --kv-format f16, bf16, f32 or q8_0 for keys and "
      "values alike, or --devices cpu",
      name);
}

Result<void> check_gpu_graph(const Graph& graph, const FusionSet& without, GpuCompany company) {
  if (auto held = check_gpu_formats(graph); !held) return held;
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    for (const size_t dimension : {node.head_dimension, node.value_dimension}) {
      if (dimension % kHeadUnit == 0 && dimension <= kGpuMaxHeadDimension) continue;
      return invalid_input(
          "this model's heads have {} dimensions; a GPU computes with multiples of {} up to {}: "
          "use "
          "--devices cpu",
          dimension, kHeadUnit, kGpuMaxHeadDimension);
    }
  }
  const bool alone = company == GpuCompany::kNobody;
  if (const auto gap = find_gpu_gap(graph, without, alone)) {
    const bool would_do = !alone && !find_gpu_gap(graph, without, /*alone=*/true);
    return invalid_input("GPUs have no kernel for this plan's {}: use --devices {}cpu", *gap,
                         would_do ? "gpu0, which computes it alone, or --devices " : "");
  }
  // After what nodes beside the GPUs would not mend.
  if (graph.chosen_experts() > kGpuChosenMax && company != GpuCompany::kNodes) {
    return invalid_input(
        "in this model a token goes to {} experts, and a GPU computes up to {}: use --devices all, "
        "which gives the experts to the nodes and all else to the GPUs, or --devices cpu",
        graph.chosen_experts(), kGpuChosenMax);
  }
  return {};
}

std::string gpu_title(const Gpu& gpu) {
  return fmt::format("gpu{} {}", gpu.index, gpu.name);
}

std::string gpu_code_name(const Gpu& gpu) {
  return fmt::format("sm_{}{}", gpu.capability_major, gpu.capability_minor);
}

GpuBudget::GpuBudget(const Topology& topology, uint64_t kept_bytes) {
  for (const Gpu& gpu : topology.gpus) {
    const uint64_t usable = usable_bytes(gpu);
    free_[gpu.index] = usable - std::min(usable, kept_bytes);
  }
}

bool GpuBudget::take(int gpu, uint64_t bytes) {
  uint64_t& left = free_.at(gpu);
  if (left < bytes) return false;
  left -= bytes;
  return true;
}

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

const GpuPlatform* usable_platform(const GpuPlatform* platform, Topology& topology) {
  if (platform == nullptr || topology.gpus.empty()) return nullptr;
  if (platform->find_matrix_library == nullptr) return platform;
  const auto found = platform->find_matrix_library();
  if (found) return platform;
  topology.no_gpus = fmt::format("the {} that the driver shows cannot be used: {}",
                                 topology.gpus.size(), found.error().message);
  topology.gpus.clear();
  return nullptr;
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
