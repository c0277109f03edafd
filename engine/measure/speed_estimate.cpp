#include "engine/measure/speed_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/placement/gpu_speeds.h"

namespace lockstep {
namespace {

using PlanRanks = std::span<MachinePlan::Rank>;

void set_speed(double bytes_per_second, bool measured, MachinePlan::Rank& rank) {
  rank.measured = measured;
  rank.bytes_per_second = bytes_per_second;
  if (bytes_per_second == 0) return;
  rank.seconds_per_token = static_cast<double>(rank.read_bytes) / bytes_per_second;
}

double slowest_experts(PlanRanks ranks) {
  double seconds = 0;
  for (const MachinePlan::Rank& rank : ranks) {
    seconds =
        std::max(seconds, static_cast<double>(rank.read_expert_bytes) / rank.bytes_per_second);
  }
  return seconds;
}

// The slowest rank of each kind of weights. Where GPUs and nodes have experts, layers are either's.
double read_seconds(PlanRanks gpus, PlanRanks nodes) {
  double dense = 0;
  for (const PlanRanks ranks : {gpus, nodes}) {
    for (const MachinePlan::Rank& rank : ranks) {
      const double expert_seconds =
          static_cast<double>(rank.read_expert_bytes) / rank.bytes_per_second;
      dense = std::max(dense, rank.seconds_per_token - expert_seconds);
    }
  }
  return dense + slowest_experts(nodes) + slowest_experts(gpus);
}

// Measured, if that has not been done for the shares. A GPU that fails at it is no reason to tell
// nothing of the rest.
GpuSpeeds speeds_of_gpus(const Machine& machine, const ModelLayout& layout) {
  if (layout.gpu_speeds) return *layout.gpu_speeds;
  const std::vector<int>& gpus = layout.devices.gpus;
  auto speeds = measure_gpu_speeds(machine.gpu_platform, machine.topology, gpus);
  return speeds ? *speeds : gpu_speeds_by_clock(machine.topology, gpus, speeds.error().message);
}

std::string gpu_verdict(const GpuSpeeds& speeds) {
  if (speeds.measured) {
    return "of GPUs by what a kernel reads that does nothing else, measured, and without what "
           "ranks exchange";
  }
  return "of GPUs by the memory's clock and width, which no kernel reaches, and without what ranks "
         "exchange; not measured: " +
         speeds.doubt;
}

// Leaves out what ranks exchange, which is not known.
Result<void> estimate_with_gpus(const Machine& machine, const ModelLayout& layout,
                                MachinePlan& plan) {
  const PlanRanks gpus = PlanRanks(plan.ranks).first(layout.gpu_places().size());
  const PlanRanks nodes = PlanRanks(plan.ranks).subspan(gpus.size());
  std::vector<double> measured;
  if (!nodes.empty()) {
    auto bandwidths = machine.meter.read(layout.node_places());
    if (!bandwidths) return std::unexpected(bandwidths.error());
    measured = std::move(*bandwidths);
  }
  const GpuSpeeds speeds = speeds_of_gpus(machine, layout);
  std::vector<std::string> silent;
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    const int index = layout.devices.gpus[rank];
    set_speed(speeds.bytes_per_second.at(index), speeds.measured, gpus[rank]);
    if (gpus[rank].bytes_per_second == 0) silent.push_back(fmt::format("gpu{}", index));
  }
  for (size_t rank = 0; rank < nodes.size(); ++rank) set_speed(measured[rank], true, nodes[rank]);
  if (!silent.empty()) {
    plan.verdict =
        fmt::format("how fast the memory of {} is, is not known", fmt::join(silent, ", "));
    return {};
  }
  plan.read_seconds = read_seconds(gpus, nodes);
  plan.tokens_per_second = 1 / plan.read_seconds;
  if (plan.ranks.size() == 1) plan.one_rank_tokens_per_second = plan.tokens_per_second;
  plan.verdict = gpu_verdict(speeds);
  return {};
}

void take_over(const NodeSpeed& speed, MachinePlan& plan) {
  for (size_t index = 0; index < plan.ranks.size(); ++index) {
    set_speed(speed.bytes_per_second[index], true, plan.ranks[index]);
  }
  plan.read_seconds = speed.read_seconds;
  plan.exchanges_per_token = speed.exchanges_per_token;
  plan.seconds_per_exchange = speed.seconds_per_exchange;
  plan.tokens_per_second = speed.tokens_per_second();
  plan.one_rank_tokens_per_second = speed.one_rank_tokens_per_second;
}

std::string one_rank_verdict(const Settings& settings, const Topology& topology,
                             const MachinePlan& plan) {
  if (topology.nodes.size() == 1) return "one rank: this machine has one node";
  if (settings.rank_count == 0) {
    return "one rank: of " + plan.devices.names + " one node has processors and memory";
  }
  return "one rank, as asked for; --ranks auto would take what is measured to be faster";
}

std::string node_verdict(const NodeSpeed& speed, const MachinePlan& plan) {
  const bool one_node = std::ranges::all_of(
      plan.ranks, [&](const MachinePlan::Rank& rank) { return rank.node == plan.ranks[0].node; });
  const std::string text = compare_with_one_rank(speed, plan.ranks.size());
  if (one_node) return "ranks on one node share its memory and gain nothing over one rank: " + text;
  return prefers_one_rank(speed) ? text + ". Start with --ranks 1" : text;
}

Result<void> estimate_on_nodes(const Model& model, const Machine& machine, const RankChoice& choice,
                               MachinePlan& plan) {
  const auto& [settings, layout, reason, measured] = choice;
  const bool has_speed = measured && measured->bytes_per_second.size() == plan.ranks.size();
  auto speed = has_speed ? Result<NodeSpeed>(*measured)
                         : measure_node_speed(model, settings, machine, layout,
                                              layout.plan_options.kv_pages);
  if (!speed) return std::unexpected(speed.error());
  take_over(*speed, plan);
  if (!reason.empty()) {
    plan.verdict = reason;
  } else if (plan.ranks.size() == 1) {
    plan.verdict = one_rank_verdict(settings, machine.topology, plan);
  } else {
    plan.verdict = node_verdict(*speed, plan);
  }
  return {};
}

}  // namespace

Result<void> estimate_speed(const Model& model, const Machine& machine, const RankChoice& choice,
                            MachinePlan& plan) {
  const bool nodes_alone = choice.layout.node_places().size() == plan.ranks.size();
  return nodes_alone ? estimate_on_nodes(model, machine, choice, plan)
                     : estimate_with_gpus(machine, choice.layout, plan);
}

}  // namespace lockstep
