#include "engine/measure/machine_benchmark.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "engine/machine/arithmetic_speed.h"
#include "engine/machine/file_speed.h"
#include "engine/machine/memory_speed.h"
#include "engine/machine/rank_places.h"
#include "engine/machine/topology.h"
#include "engine/machine/workers.h"
#include "engine/placement/machine.h"
#include "engine/runtime/exchange_measurement.h"
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

// Tensors of one token of a small model up to a prompt's of a large one.
constexpr size_t kLeastTensorBytes = 1U << 10U;
constexpr size_t kMostTensorBytes = 16U << 20U;

// A quarter of what is free on a node is taken at most; but less than this says nothing.
constexpr uint64_t kFreeFraction = 4;
constexpr uint64_t kLeastMemoryBytes = 64U << 20U;

struct MeasuredNode {
  const Node& node;
  std::vector<int> cpus;    // one per physical core
  std::vector<int> caches;  // of these (caches_of)
};

std::vector<MeasuredNode> list_nodes(const Topology& topology) {
  std::vector<MeasuredNode> nodes;
  for (const Node& node : topology.nodes) {
    Topology own;
    for (const Cpu& cpu : topology.cpus) {
      if (cpu.node == node.id) own.cpus.push_back(cpu);
    }
    std::vector<int> cpus = one_cpu_per_core(own);
    std::vector<int> caches = caches_of(topology, cpus);
    nodes.push_back({node, std::move(cpus), std::move(caches)});
  }
  return nodes;
}

Result<MachineMeasurement::Path> measure_path(const MeasuredNode& from, const Node& to,
                                              const MachineMeasurementOptions& options) {
  const uint64_t most = std::max(kLeastMemoryBytes, to.free_bytes / kFreeFraction);
  auto speed = measure_memory({.cpus = from.cpus,
                               .node = to.id,
                               .bytes = std::min(options.memory_bytes, most),
                               .seconds = options.seconds});
  if (!speed) return std::unexpected(speed.error());
  return MachineMeasurement::Path{.from_node = from.node.id,
                                  .to_node = to.id,
                                  .read = speed->all_cores.read,
                                  .write = speed->all_cores.write,
                                  .copy = speed->all_cores.copy,
                                  .one_core_read = speed->one_core.read,
                                  .one_core_write = speed->one_core.write,
                                  .one_core_copy = speed->one_core.copy,
                                  .latency_seconds = speed->latency_seconds,
                                  .pages = std::move(speed->pages)};
}

Result<void> measure_paths(const Topology& topology, const std::vector<MeasuredNode>& nodes,
                           const MachineMeasurementOptions& options, MachineMeasurement& result) {
  for (size_t from = 0; from < nodes.size(); ++from) {
    if (nodes[from].cpus.empty()) continue;
    for (size_t to = 0; to < nodes.size(); ++to) {
      if (!nodes[to].node.has_usable_memory()) continue;
      auto path = measure_path(nodes[from], nodes[to].node, options);
      if (!path) return std::unexpected(path.error());
      path->distance = topology.distance(from, to);
      result.paths.push_back(std::move(*path));
    }
  }
  return {};
}

// By the cores of either node: a copy that reads afar and one that writes afar differ, and so may
// the two directions of a link.
Result<void> measure_node_copies(const std::vector<MeasuredNode>& nodes,
                                 const MachineMeasurementOptions& options,
                                 MachineMeasurement& result) {
  for (const MeasuredNode& from : nodes) {
    for (const MeasuredNode& to : nodes) {
      if (!from.node.has_usable_memory() || !to.node.has_usable_memory()) continue;
      const uint64_t free = std::min(from.node.free_bytes, to.node.free_bytes);
      const uint64_t most = std::max(kLeastMemoryBytes, free / kFreeFraction);
      std::vector<const MeasuredNode*> copiers = {&from};
      if (&from != &to) copiers.push_back(&to);
      for (const MeasuredNode* by : copiers) {
        if (by->cpus.empty()) continue;
        const auto copy = measure_copy({.cpus = by->cpus,
                                        .node = from.node.id,
                                        .bytes = std::min(options.memory_bytes, most),
                                        .seconds = options.seconds},
                                       to.node.id);
        if (!copy) return std::unexpected(copy.error());
        result.node_copies.push_back({from.node.id, to.node.id, by->node.id, *copy});
      }
    }
  }
  return {};
}

// Every node's cores together.
Result<void> measure_all_arithmetic(const std::vector<MeasuredNode>& nodes, double seconds,
                                    MachineMeasurement& result) {
  std::vector<int> cpus;
  for (const MeasuredNode& node : nodes)
    cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
  auto measured = measure_arithmetic_of(cpus, {}, seconds);
  if (!measured) return std::unexpected(measured.error());
  result.arithmetic = std::move(*measured);
  return {};
}

// Seconds per round: the median of several times so many rounds.
Result<double> measure_barrier(std::span<const int> cpus, std::span<const int> caches, int node) {
  constexpr size_t kTimes = 9;
  auto workers = Workers::start(cpus, false, node, {}, caches);
  if (!workers) return std::unexpected(workers.error());
  const auto seconds_of = [&](size_t rounds) {
    const auto start = std::chrono::steady_clock::now();
    (*workers)->run([&](size_t worker) {
      for (size_t round = 0; round < rounds; ++round) {
        (*workers)->barrier().arrive_and_wait(worker);
      }
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const size_t rounds = repeats_for(seconds_of(kFewRepeats));
  std::vector<double> times;
  for (size_t time = 0; time < kTimes; ++time) {
    times.push_back(seconds_of(rounds) / static_cast<double>(rounds));
  }
  std::ranges::nth_element(times, times.begin() + kTimes / 2);
  return times[kTimes / 2];
}

// By numbers of workers: 2, 4, 8 ... and all.
Result<void> measure_barriers(const std::vector<MeasuredNode>& nodes, MachineMeasurement& result) {
  for (const MeasuredNode& node : nodes) {
    const size_t most = node.cpus.size();
    for (size_t count = 2; count <= most; count = std::min(most, 2 * count)) {
      const auto caches = std::span(node.caches).first(std::min(count, node.caches.size()));
      auto seconds = measure_barrier(std::span(node.cpus).first(count), caches, node.node.id);
      if (!seconds) return std::unexpected(seconds.error());
      result.barriers.push_back({node.node.id, static_cast<uint32_t>(count), *seconds});
      if (count == most) break;
    }
  }
  return {};
}

// A rank per node; on one node two that share it.
Result<std::vector<RankPlace>> place_measured_ranks(const Topology& topology,
                                                    MachineMeasurement& result) {
  RankRequest request;
  request.reserved_cores = 0;
  auto places = place_ranks(topology, request);
  if (!places || places->size() > 1) return places;
  if (one_cpu_per_core(topology).size() < 2) return std::vector<RankPlace>{};
  result.simulated_ranks = true;
  request.rank_count = 2;
  return place_ranks(topology, request);
}

Result<void> measure_exchanges(const Topology& topology, MachineMeasurement& result) {
  const auto places = place_measured_ranks(topology, result);
  if (!places) return std::unexpected(places.error());
  result.rank_count = static_cast<uint32_t>(places->size());
  if (places->empty()) return {};
  auto exchange = ExchangeMeasurement::make(*places, kMostTensorBytes);
  if (!exchange) return std::unexpected(exchange.error());
  uint32_t worker_count = 0;
  for (const RankPlace& place : *places) worker_count += static_cast<uint32_t>(place.cpus.size());
  result.barriers.push_back({-1, worker_count, exchange->measure(ExchangeKind::kBarrier, 0)});
  const std::pair<ExchangeKind, const char*> kinds[] = {{ExchangeKind::kAllGather, "all_gather"},
                                                        {ExchangeKind::kAllReduce, "all_reduce"}};
  for (const auto& [kind, name] : kinds) {
    for (size_t bytes = kLeastTensorBytes; bytes <= kMostTensorBytes; bytes *= 4) {
      result.collectives.push_back({name, bytes, exchange->measure(kind, bytes)});
    }
  }
  return {};
}

Result<void> measure_file(const MachineMeasurementOptions& options, MachineMeasurement& result) {
  if (options.file.empty()) return {};
  // A disk takes longer than memory to get to its speed.
  constexpr double kFileSeconds = 3;
  const auto speed = measure_file_read(options.file, std::max(kFileSeconds, options.seconds));
  if (!speed) return std::unexpected(speed.error());
  result.files.push_back({.path = options.file.string(),
                          .bytes = speed->bytes,
                          .bytes_per_second = static_cast<double>(speed->bytes) / speed->seconds,
                          .direct = speed->direct});
  return {};
}

}  // namespace

Result<std::vector<MachineArithmetic>> measure_arithmetic_of(std::span<const int> cpus,
                                                             std::string_view instruction_set,
                                                             double seconds) {
  std::vector<MachineArithmetic> measured;
  for (const ArithmeticLoop& loop : arithmetic_loops()) {
    // avx512bf16 computes with avx512's instructions as well; amx's vectors are not its speed.
    if (!instruction_set.empty() && !instruction_set.starts_with(loop.instruction_set)) continue;
    if (!loop.is_supported()) continue;
    const auto speed = measure_arithmetic(loop, cpus, seconds);
    if (!speed) return std::unexpected(speed.error());
    measured.push_back({.instruction_set = std::string(loop.instruction_set),
                        .operation = std::string(loop.operation),
                        .operations_per_second = speed->all_cores,
                        .one_core_operations_per_second = speed->one_core});
  }
  return measured;
}

Result<MachineLimits> measure_limits_of(std::span<const RankPlace> places,
                                        std::string_view instruction_set) {
  constexpr double kSeconds = 0.1;  // for each figure
  MachineLimits limits;
  const auto bandwidths = measure_read_bandwidths(places);
  if (!bandwidths) return std::unexpected(bandwidths.error());
  for (const double bandwidth : *bandwidths) limits.read_bytes_per_second += bandwidth;
  std::vector<int> cpus;
  for (const RankPlace& place : places) {
    cpus.insert(cpus.end(), place.cpus.begin(), place.cpus.end());
  }
  auto arithmetic = measure_arithmetic_of(cpus, instruction_set, kSeconds);
  if (!arithmetic) return std::unexpected(arithmetic.error());
  limits.arithmetic = std::move(*arithmetic);
  return limits;
}

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

Result<MachineMeasurement> measure_machine(const MachineMeasurementOptions& options) {
  MachineMeasurement result;
  // First, so that a wrong name is said at once.
  if (auto done = measure_file(options, result); !done) return std::unexpected(done.error());
  const Machine machine = Machine::read(/*with_gpus=*/true);
  const Topology& topology = machine.topology;
  const std::vector<MeasuredNode> nodes = list_nodes(topology);
  for (const MeasuredNode& node : nodes) {
    result.nodes.push_back({node.node.id, node.cpus, node.node.has_usable_memory()});
  }
  if (auto done = measure_paths(topology, nodes, options, result); !done) {
    return std::unexpected(done.error());
  }
  if (auto done = measure_node_copies(nodes, options, result); !done) {
    return std::unexpected(done.error());
  }
  if (auto done = measure_all_arithmetic(nodes, options.seconds, result); !done) {
    return std::unexpected(done.error());
  }
  measure_gpus(machine.gpu_platform, topology, options, result);
  if (!options.exchanges) return result;
  if (auto done = measure_barriers(nodes, result); !done) return std::unexpected(done.error());
  if (auto done = measure_exchanges(topology, result); !done) {
    return std::unexpected(done.error());
  }
  return result;
}

}  // namespace lockstep
