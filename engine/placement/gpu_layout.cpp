#include "engine/placement/gpu_layout.h"

#include <fmt/format.h>

#include "engine/kernels/attention.h"
#include "engine/kernels/gpu_experts.h"
#include "engine/machine/device_choice.h"

namespace lockstep {
namespace {

// Dimensions of a head that lie together in the cache of a GPU.
constexpr size_t kHeadUnit = 8;

}  // namespace

Result<void> check_gpu_graph(const Graph& graph, bool beside_nodes) {
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    if (node.head_dimension % kHeadUnit == 0 && node.head_dimension <= kMaxHeadDimension) continue;
    return invalid_input(
        "this model's heads have {} dimensions; a GPU computes with multiples of {} up to {}: use "
        "--devices cpu",
        node.head_dimension, kHeadUnit, kMaxHeadDimension);
  }
  // After what nodes beside the GPUs would not mend.
  if (graph.chosen_experts() > kGpuChosenMax && !beside_nodes) {
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

}  // namespace lockstep
