#include "engine/measure/speed_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/placement/gpu_traits.h"
#include "engine/placement/layout_speed.h"

namespace lockstep {
namespace {

using PlanRanks = std::span<MachinePlan::Rank>;

void set_speed(double bytes_per_second, bool measured, MachinePlan::Rank& rank) {
  rank.measured = measured;
  rank.bytes_per_second = bytes_per_second;
  if (bytes_per_second == 0) return;
  rank.seconds_per_token = static_cast<double>(rank.read_bytes) / bytes_per_second;
}

// As the placement reads it off the layout.
double seconds_of_reading(PlanRanks ranks, size_t gpu_count, bool by_layers) {
  std::vector<ReadBytes> read;
  std::vector<double> bytes_per_second;
  for (const MachinePlan::Rank& rank : ranks) {
    read.push_back({.all = rank.read_bytes, .experts = rank.read_expert_bytes});
    bytes_per_second.push_back(rank.bytes_per_second);
  }
  return by_layers ? read_seconds_by_layers(read, bytes_per_second)
                   : read_seconds(read, bytes_per_second, gpu_count);
}

// The estimate of a layout; one body for nodes alone, one for GPUs, with or without nodes.
class SpeedModel {
 public:
  virtual ~SpeedModel() = default;
  virtual Result<void> fill(MachinePlan& plan) const = 0;
};

// By what ranks read and exchange.
class NodeSpeedModel final : public SpeedModel {
 public:
  NodeSpeedModel(const Model& model, const Machine& machine, const RankChoice& choice)
      : model_(model), machine_(machine), choice_(choice) {}

  Result<void> fill(MachinePlan& plan) const override {
    const auto speed = measured();
    if (!speed) return std::unexpected(speed.error());
    for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
      set_speed(speed->bytes_per_second[rank], true, plan.ranks[rank]);
    }
    plan.read_seconds = speed->read_seconds;
    plan.exchanges_per_token = speed->exchanges_per_token;
    plan.seconds_per_exchange = speed->seconds_per_exchange;
    plan.tokens_per_second = speed->tokens_per_second();
    plan.one_rank_tokens_per_second = speed->one_rank_tokens_per_second;
    plan.verdict = verdict(*speed, plan);
    return {};
  }

 private:
  // For the number of ranks, if that was chosen and is that of the layout.
  Result<NodeSpeed> measured() const {
    const auto& speed = choice_.speed;
    const ModelLayout& layout = choice_.layout;
    if (speed && speed->bytes_per_second.size() == layout.places.size()) return *speed;
    return measure_node_speed(model_, choice_.settings, machine_, layout,
                              layout.plan_options.kv_pages);
  }

  std::string verdict(const NodeSpeed& speed, const MachinePlan& plan) const {
    if (!choice_.reason.empty()) return choice_.reason;
    if (plan.ranks.size() == 1) return one_rank_verdict(plan);
    const std::string text = compare_with_one_rank(speed, plan.ranks.size());
    const int node = plan.ranks.front().node;
    if (std::ranges::all_of(plan.ranks, [&](const auto& rank) { return rank.node == node; })) {
      return "ranks on one node share its memory and gain nothing over one rank: " + text;
    }
    return prefers_one_rank(speed) ? text + ". Start with --ranks 1" : text;
  }

  std::string one_rank_verdict(const MachinePlan& plan) const {
    if (machine_.topology.nodes.size() == 1) return "one rank: this machine has one node";
    if (choice_.settings.rank_count == 0) {
      return "one rank: of " + plan.devices.names + " one node has processors and memory";
    }
    return "one rank, as asked for; --ranks auto would take what is measured to be faster";
  }

  const Model& model_;
  const Machine& machine_;
  const RankChoice& choice_;
};

// Leaves out what ranks exchange, which is not known.
class GpuSpeedModel final : public SpeedModel {
 public:
  GpuSpeedModel(const Model& model, const Machine& machine, const ModelLayout& layout)
      : model_(model), machine_(machine), layout_(layout) {}

  Result<void> fill(MachinePlan& plan) const override {
    const PlanRanks gpus = PlanRanks(plan.ranks).first(layout_.gpu_places().size());
    const PlanRanks nodes = PlanRanks(plan.ranks).subspan(gpus.size());
    const auto measured = node_speeds();
    if (!measured) return std::unexpected(measured.error());
    for (size_t rank = 0; rank < nodes.size(); ++rank) {
      set_speed((*measured)[rank], true, nodes[rank]);
    }
    const GpuSpeeds speeds = gpu_speeds();
    std::vector<std::string> silent;
    for (size_t rank = 0; rank < gpus.size(); ++rank) {
      const int index = layout_.devices.gpus[rank];
      set_speed(speeds.bytes_per_second.at(index), speeds.measured, gpus[rank]);
      if (gpus[rank].bytes_per_second == 0) silent.push_back(fmt::format("gpu{}", index));
    }
    if (!silent.empty()) {
      plan.verdict =
          fmt::format("how fast the memory of {} is, is not known", fmt::join(silent, ", "));
      return {};
    }
    plan.read_seconds = seconds_of_reading(plan.ranks, gpus.size(), layout_.split.is_by_layers());
    plan.tokens_per_second = 1 / plan.read_seconds;
    if (plan.ranks.size() == 1) plan.one_rank_tokens_per_second = plan.tokens_per_second;
    plan.verdict = verdict(speeds) + exchange_text();
    return {};
  }

 private:
  // Counted, not measured: what takes the prompts' time where GPUs have no fast links.
  std::string exchange_text() const {
    if (layout_.split.borders.empty()) return "";
    const auto kib = [&](Strategy strategy) {
      return static_cast<double>(exchanged_bytes_per_token(model_, layout_, strategy)) / 1024;
    };
    const double summed = kib(Strategy::kReduce);  // 0: it cannot be cut so
    return fmt::format(
        "; a token passes the GPUs one after the other, and hands over {} KiB in all{}",
        kib(Strategy::kLayers),
        summed == 0 ? "" : fmt::format(", where strategy reduce would sum {} KiB", summed));
  }

  Result<std::vector<double>> node_speeds() const {
    const auto places = layout_.node_places();
    return places.empty() ? std::vector<double>() : machine_.meter.read_speeds(places);
  }

  // Measured, if that has not been done for the shares. A GPU that fails at it is no reason to tell
  // nothing of the rest.
  GpuSpeeds gpu_speeds() const {
    if (layout_.gpu_speeds) return *layout_.gpu_speeds;
    const std::vector<int>& gpus = layout_.devices.gpus;
    auto speeds = measure_gpu_speeds(machine_.gpu_platform, machine_.topology, gpus);
    return speeds ? *speeds : gpu_speeds_by_clock(machine_.topology, gpus, speeds.error().message);
  }

  static std::string verdict(const GpuSpeeds& speeds) {
    if (speeds.measured) {
      return "of GPUs by what a kernel reads that does nothing else, measured, and without what "
             "ranks exchange";
    }
    return "of GPUs by the memory's clock and width, which no kernel reaches, and without what "
           "ranks exchange; not measured: " +
           speeds.doubt;
  }

  const Model& model_;
  const Machine& machine_;
  const ModelLayout& layout_;
};

std::unique_ptr<SpeedModel> speed_model(const Model& model, const Machine& machine,
                                        const RankChoice& choice) {
  const bool nodes_alone = choice.layout.gpu_places().empty();
  if (nodes_alone) return std::make_unique<NodeSpeedModel>(model, machine, choice);
  return std::make_unique<GpuSpeedModel>(model, machine, choice.layout);
}

}  // namespace

Result<void> estimate_speed(const Model& model, const Machine& machine, const RankChoice& choice,
                            MachinePlan& plan) {
  return speed_model(model, machine, choice)->fill(plan);
}

}  // namespace lockstep
