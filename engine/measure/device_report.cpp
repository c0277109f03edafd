#include "engine/measure/device_report.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep {

void describe_devices(const Topology& topology, const DeviceChoice& choice, MachinePlan& plan) {
  for (const Gpu& gpu : topology.gpus) {
    MachinePlan::Gpu described{
        .index = gpu.index,
        .name = gpu.name,
        .uuid = gpu.uuid,
        .pci_address = gpu.pci_address,
        .node = gpu.node,
        .memory_bytes = gpu.memory_bytes,
        .free_bytes = gpu.free_bytes,
        .compute_capability = fmt::format("{}.{}", gpu.capability_major, gpu.capability_minor),
        .multiprocessor_count = static_cast<uint32_t>(gpu.multiprocessor_count),
        .bytes_per_second = gpu.bytes_per_second,
        .links = {}};
    for (size_t other = 0; other < gpu.links.size(); ++other) {
      if (gpu.links[other] == GpuLink::kSelf) continue;
      described.links.push_back(
          {topology.gpus[other].index, std::string(link_name(gpu.links[other]))});
    }
    plan.gpus.push_back(std::move(described));
  }
  plan.no_gpus = topology.gpus.empty() ? topology.no_gpus : "";
  plan.devices = {.nodes = choice.nodes,
                  .gpus = choice.gpus,
                  .names = device_names(choice),
                  .reason = choice.reason};
}

}  // namespace lockstep
