#include "engine/placement/device_places.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "engine/base/check.h"
#include "engine/collectives/gpu_all_reduce.h"
#include "engine/collectives/gpu_all_reduce_choice.h"
#include "engine/collectives/gpu_nccl_sum.h"
#include "engine/collectives/nccl.h"
#include "engine/placement/gpu_layout.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {
namespace {

constexpr double kShareParts = 64;
// Of each of several ranks of processors: 64 for two of them.
constexpr double kPartsPerRank = 32;
// Of a GPU's room, where it is what limits its share; the rest is for the cache and what lies there
// whatever the share is. A guess.
constexpr double kGpuRoomForModel = 0.8;

Result<std::vector<RankPlace>> find_node_places(const Settings& settings, const Topology& topology,
                                                const DeviceChoice& devices, size_t rank_count,
                                                const std::vector<double>& shares,
                                                std::optional<double> cpu_limit) {
  return place_ranks(topology, {.nodes = devices.nodes,
                                .rank_count = rank_count,
                                .shares = shares,
                                .worker_count = settings.worker_count,
                                .reserved_cores = settings.reserved_cores,
                                .cpu_limit = cpu_limit});
}

// In whole parts of so many, at least 1.
double in_parts(double share, double parts) {
  return std::max(1.0, std::round(share * parts));
}

// Of GPUs alone. None: one of them does not say.
std::vector<double> shares_of_gpus(const GpuSpeeds& speeds) {
  std::vector<double> bandwidths;
  for (const auto& [gpu, speed] : speeds.bytes_per_second) {
    if (speed <= 0) return {};
    bandwidths.push_back(speed);
  }
  return shares_in_parts(bandwidths);
}

// By bandwidth, but for GPUs that have no room for so much. In parts of kShareParts: what is
// measured differs a little from start to start, and where the model is cut must not, since sums
// depend on it.
Result<void> share_by_bandwidth(const Machine& machine, const GpuSpeeds& speeds,
                                uint64_t model_bytes, std::vector<RankPlace>& places) {
  std::vector<RankPlace> nodes;
  double gpu_bandwidth = 0;
  for (const RankPlace& place : places) {
    if (!place.gpu) {
      nodes.push_back(place);
      continue;
    }
    const double own = speeds.bytes_per_second.at(*place.gpu);
    gpu_bandwidth += own;
    if (own > 0) continue;
    return invalid_input(
        "gpu{} does not say how fast its memory is: give the ranks' shares, like --shares {}",
        *place.gpu, fmt::join(std::vector<int>(places.size(), 1), ":"));
  }
  const auto measured = machine.meter.read(nodes);
  if (!measured) return std::unexpected(measured.error());
  const double node_bandwidth = std::accumulate(measured->begin(), measured->end(), 0.0);
  double on_gpus = 0;
  for (RankPlace& place : places) {
    if (!place.gpu) continue;
    const Gpu& gpu = gpu_at(machine.topology, *place.gpu);
    const double room = kGpuRoomForModel * static_cast<double>(usable_bytes(gpu)) /
                        static_cast<double>(model_bytes);
    const double own = speeds.bytes_per_second.at(*place.gpu);
    const double share = std::min(own / (gpu_bandwidth + node_bandwidth), room);
    place.share = in_parts(share, kShareParts);
    on_gpus += place.share;
  }
  const double left = std::max(static_cast<double>(nodes.size()), kShareParts - on_gpus);
  size_t node = 0;
  for (RankPlace& place : places) {
    if (place.gpu) continue;
    place.share = in_parts(left / kShareParts * (*measured)[node++] / node_bandwidth, kShareParts);
  }
  return {};
}

// GPUs first. The nodes' ranks have what cores and what time the threads that drive GPUs leave.
Result<std::vector<RankPlace>> find_mixed_places(const Settings& settings, const Machine& machine,
                                                 const DeviceChoice& devices, uint64_t gpu_bytes,
                                                 const std::optional<GpuSpeeds>& speeds) {
  const Topology& topology = machine.topology;
  auto places = place_gpu_ranks(topology, devices.gpus, {});
  if (!places) return places;
  std::vector<int> drivers;
  for (const RankPlace& place : *places) drivers.push_back(place.cpus.front());
  const size_t rank_count =
      settings.rank_count - std::min<size_t>(settings.rank_count, places->size());
  auto cpu_limit = machine.cpu_limit;
  if (cpu_limit) *cpu_limit = std::max(1.0, *cpu_limit - static_cast<double>(drivers.size()));
  auto nodes = find_node_places(settings, without_cores(topology, drivers), devices, rank_count, {},
                                cpu_limit);
  if (!nodes) return nodes;
  places->insert(places->end(), nodes->begin(), nodes->end());
  if (settings.shares.empty()) {
    auto shared = share_by_bandwidth(machine, *speeds, gpu_bytes, *places);
    if (!shared) return std::unexpected(shared.error());
  }
  if (auto set = set_shares(settings.shares, *places); !set) return std::unexpected(set.error());
  return places;
}

bool has_nccl_for_ranks(const Machine& machine) {
  const GpuPlatform* const platform = machine.gpu_platform;
  return platform != nullptr && platform->join != nullptr;
}

}  // namespace

Result<void> check_gpu_use(const Graph& graph, const Settings& settings, const Machine& machine,
                           const DeviceChoice& devices) {
  const size_t gpu_count = devices.gpus.size();
  const bool mixed = !devices.nodes.empty();
  // First, as its remedies are other devices, of which the checks of the devices would say more.
  if (auto fits = check_gpu_graph(graph, mixed); !fits) return fits;
  const bool other_count =
      mixed ? settings.rank_count <= gpu_count : settings.rank_count != gpu_count;
  if (settings.rank_count != 0 && other_count) {
    return invalid_input(
        "ranks is {}, but each GPU is one rank, of which {} are chosen{}; leave --ranks out, or "
        "use --devices cpu",
        settings.rank_count, gpu_count, mixed ? ", and nodes are to have some" : "");
  }
  if (!mixed && gpu_count > kGpuRanksMax) {
    return invalid_input(
        "{} GPUs are chosen; at most {} can be ranks of one split: name fewer in --devices",
        gpu_count, kGpuRanksMax);
  }
  if (settings.strategy == Strategy::kGather && (gpu_count > 1 || mixed)) {
    return invalid_input(
        "strategy gather is for ranks that share memory; {} sum their parts: use --strategy auto "
        "or reduce",
        device_names(devices));
  }
  if (!mixed && !has_nccl_for_ranks(machine)) {
    if (auto linked = check_links(machine.topology, devices.gpus); !linked) return linked;
  }
  return {};
}

std::string_view sums_text(const Topology& topology, const DeviceChoice& devices) {
  const bool linked = !devices.nodes.empty() || check_links(topology, devices.gpus).has_value();
  return linked ? "" : "; not all of them reach the others' memory, so sums go by NCCL";
}

uint64_t nccl_bytes(const Machine& machine, const DeviceChoice& devices, bool gpus_linked,
                    uint64_t message_floats) {
  const size_t gpu_count = devices.gpus.size();
  if (gpu_count < 2 || !devices.nodes.empty() || !has_nccl_for_ranks(machine)) return 0;
  const GpuSumWay way = gpu_sum_way({.rank_count = gpu_count,
                                     .bytes = message_floats * sizeof(float),
                                     .peer_access = gpus_linked,
                                     .nccl = true});
  if (way != GpuSumWay::kNccl) return 0;
  return kNcclBytes + gpu_nccl_received_floats(gpu_count, message_floats) * sizeof(float);
}

bool shares_follow_gpu_speeds(const Settings& settings, const Topology& topology,
                              const DeviceChoice& devices) {
  if (devices.gpus.empty() || !settings.shares.empty()) return false;
  return !devices.nodes.empty() || !are_alike(topology, devices.gpus);
}

Result<std::vector<RankPlace>> find_places(const Settings& settings, const Machine& machine,
                                           const DeviceChoice& devices, uint64_t gpu_bytes,
                                           const std::optional<GpuSpeeds>& speeds) {
  const Topology& topology = machine.topology;
  CHECK(speeds.has_value() || !shares_follow_gpu_speeds(settings, topology, devices),
        "how fast {} are is not known", device_names(devices));
  if (!devices.gpus.empty() && !devices.nodes.empty()) {
    return find_mixed_places(settings, machine, devices, gpu_bytes, speeds);
  }
  if (!devices.gpus.empty()) {
    return place_gpu_ranks(topology, devices.gpus,
                           speeds ? shares_of_gpus(*speeds) : settings.shares);
  }
  auto places = find_node_places(settings, topology, devices, settings.rank_count, settings.shares,
                                 machine.cpu_limit);
  if (!places || !settings.measure_shares || places->size() == 1) return places;
  const auto bandwidths = machine.meter.read(*places);
  if (!bandwidths) return std::unexpected(bandwidths.error());
  const auto shares = shares_in_parts(*bandwidths);
  for (size_t rank = 0; rank < places->size(); ++rank) (*places)[rank].share = shares[rank];
  return places;
}

void place_by_kind(std::vector<RankPlace>& places) {
  for (RankPlace& place : places) {
    const bool on_gpu = place.gpu.has_value();
    place.expert_share = on_gpu ? 0 : place.share;
    if (!on_gpu) place.share = 0;
  }
}

Shares shares_of(const std::vector<RankPlace>& places) {
  Shares shares;
  for (const RankPlace& place : places) {
    shares.dense.push_back(place.share);
    shares.experts.push_back(expert_share_of(place));
  }
  return shares;
}

std::vector<double> shares_in_parts(const std::vector<double>& bandwidths) {
  const double all = std::accumulate(bandwidths.begin(), bandwidths.end(), 0.0);
  const double parts = kPartsPerRank * static_cast<double>(bandwidths.size());
  std::vector<double> shares;
  for (const double own : bandwidths) {
    shares.push_back(in_parts(own / all, parts));
  }
  return shares;
}

}  // namespace lockstep
