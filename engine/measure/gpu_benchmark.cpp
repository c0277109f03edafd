#include "engine/measure/gpu_benchmark.h"

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/machine/rank_places.h"
#include "engine/runtime/gpu/gpu_meter.h"

namespace lockstep {
namespace {

// The node whose memory a rank on this GPU would have.
int node_of(const Topology& topology, const Gpu& gpu) {
  const auto places = place_gpu_ranks(topology, {gpu.index}, {});
  return places ? places->front().node : -1;
}

Result<void> measure(GpuMeter& meter, MachineMeasurement::Gpu& figures) {
  figures.memory_bytes = meter.memory_bytes();
  const auto read = meter.read();
  if (!read) return std::unexpected(read.error());
  figures.read = *read;
  const auto copy = meter.copy();
  if (!copy) return std::unexpected(copy.error());
  figures.copy = *copy;
  const auto host = meter.copy_host(figures.node);
  if (!host) return std::unexpected(host.error());
  figures.from_host = host->from_host;
  figures.to_host = host->to_host;
  const auto launch = meter.launch();
  if (!launch) return std::unexpected(launch.error());
  figures.launch_seconds = launch->alone;
  figures.recorded_launch_seconds = launch->recorded;
  const auto product = meter.product();
  if (!product) return std::unexpected(product.error());
  figures.product = *product;
  return {};
}

// Null where it has failed, which is said.
std::unique_ptr<GpuMeter> measure_gpu(const GpuPlatform& platform, const Topology& topology,
                                      const Gpu& gpu, const MachineMeasurementOptions& options,
                                      MachineMeasurement& result) {
  MachineMeasurement::Gpu& figures = result.gpus.emplace_back();
  figures.index = gpu.index;
  figures.name = gpu.name;
  figures.node = node_of(topology, gpu);
  figures.by_clock = gpu.bytes_per_second;
  auto meter = GpuMeter::open(platform, gpu, {options.memory_bytes, options.seconds});
  auto measured = meter ? measure(**meter, figures) : std::unexpected(meter.error());
  if (measured) return std::move(*meter);
  figures.failure = measured.error().message;
  return nullptr;
}

// `meters`: of each of the machine's GPUs, in their order.
void measure_paths(const Topology& topology, std::span<const std::unique_ptr<GpuMeter>> meters,
                   MachineMeasurement& result) {
  const auto is_usable = [](const auto& meter) { return meter != nullptr && !meter->is_lost(); };
  for (size_t from = 0; from < meters.size(); ++from) {
    const Gpu& gpu = topology.gpus[from];
    for (size_t to = 0; to < meters.size(); ++to) {
      const bool reaches = gpu.links[to] == GpuLink::kNvlink || gpu.links[to] == GpuLink::kPeer;
      if (!reaches || !is_usable(meters[from]) || !is_usable(meters[to])) continue;
      const auto copy = meters[from]->copy_to(*meters[to]);
      result.gpu_paths.push_back({.from_gpu = gpu.index,
                                  .to_gpu = topology.gpus[to].index,
                                  .link = std::string(link_name(gpu.links[to])),
                                  .failure = copy ? "" : copy.error().message,
                                  .copy = copy.value_or(0)});
    }
  }
}

}  // namespace

void measure_gpus(const GpuPlatform* platform, const Topology& topology,
                  const MachineMeasurementOptions& options, MachineMeasurement& result) {
  result.no_gpus = topology.gpus.empty() ? topology.no_gpus : "";
  if (platform == nullptr) return;
  std::vector<std::unique_ptr<GpuMeter>> meters;
  for (const Gpu& gpu : topology.gpus) {
    meters.push_back(measure_gpu(*platform, topology, gpu, options, result));
  }
  measure_paths(topology, meters, result);
}

}  // namespace lockstep
