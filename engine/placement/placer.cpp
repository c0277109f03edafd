#include "engine/placement/placer.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/placement/device_rules.h"
#include "engine/placement/expert_placement.h"
#include "engine/placement/gpu_traits.h"
#include "engine/placement/memory_fit.h"

namespace lockstep {
namespace {

void name_devices(const Topology& topology, const Settings& settings, ModelLayout& layout) {
  layout.arithmetic = layout.rules().arithmetic(settings);
  layout.instruction_set = layout.rules().instruction_set(topology, settings, layout.devices);
  std::vector<std::string> titles;
  for (const int gpu : layout.devices.gpus) titles.push_back(gpu_title(gpu_at(topology, gpu)));
  for (const int node : layout.devices.nodes) titles.push_back(fmt::format("node{}", node));
  layout.device_titles = fmt::format("{}", fmt::join(titles, ", "));
}

}  // namespace

Result<void> Placer::check_heads() const {
  for (const GraphNode& node : model_.graph.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    for (const size_t dimension : {node.head_dimension, node.value_dimension}) {
      if (kv_format_fits(settings_.kv_format, dimension)) continue;
      return invalid_input(
          "KV format {} stores heads in blocks of 32, this model's heads have {} dimensions; use "
          "--kv-format f16",
          settings_.kv_format_name, dimension);
    }
  }
  return {};
}

Result<RankSizes> Placer::least_gpu_sizes() const {
  if (machine_.topology.gpus.empty() || !check_gpu_formats(model_.graph)) return RankSizes();
  const std::vector<double> alone = {1};
  const auto whole = split_graph(model_.graph, alone, Strategy::kGather);
  if (!whole) return std::unexpected(whole.error());
  const size_t context = settings_.context_tokens;
  const KvPageCount count(model_.graph, settings_.batch_tokens);
  const size_t pages = context != 0 ? wanted_pages(settings_, count, context) : 1;
  const DeviceChoice any{.nodes = {}, .gpus = {0}, .reason = {}};
  const PlanOptions options = rules_of(any).plan_options(model_, settings_, settings_.batch_tokens);
  const RankPlace place{.node = -1, .cpus = {}, .device = GpuPlace{any.gpus.front()}};
  return rank_sizes(model_, *whole, options, pages, {&place, 1}, true).front();
}

Result<DeviceChoice> Placer::find_devices(const RankSizes& least) const {
  const Topology& topology = machine_.topology;
  DeviceChoice choice;
  if (settings_.devices) {
    choice = *settings_.devices;
  } else {
    uint64_t joined_bytes = 0;
    if (const auto all = choose_devices("gpu", topology, 0)) {
      const bool linked = check_links(topology, all->gpus).has_value();
      joined_bytes = rules_of(*all).nccl_bytes(machine_, *all, linked, least.message_floats);
    }
    choice = *choose_devices("auto", topology, least.gpu_bytes(), joined_bytes);
  }
  const DeviceRules& rules = rules_of(choice);
  const auto usable = rules.check(model_.graph, settings_, machine_, choice);
  if (usable) {
    choice.reason += rules.sums_text(topology, choice);
    return choice;
  }
  if (!choice.automatic) return std::unexpected(usable.error());
  return every_node(topology, "no GPU, since " + usable.error().message);
}

Result<void> Placer::find_gpu_speeds(ModelLayout& layout) {
  if (!layout.rules().shares_follow_gpu_speeds(settings_, machine_.topology, layout.devices)) {
    return {};
  }
  if (!gpu_speeds_) {
    gpu_speeds_ = measure_gpu_speeds(machine_.gpu_platform, machine_.topology, layout.devices.gpus);
  }
  const Result<GpuSpeeds>& speeds = *gpu_speeds_;
  if (!speeds) return std::unexpected(speeds.error());
  layout.devices.reason +=
      "; shares follow bandwidth, of GPUs " +
      (speeds->measured ? "as measured" : "by their memory's clock and width: " + speeds->doubt);
  layout.gpu_speeds = *speeds;
  return {};
}

Result<void> Placer::split(ModelLayout& layout) const {
  const DeviceRules& rules = layout.rules();
  if (rules.traits.experts_by_kind && model_.graph.chosen_experts() > 0) {
    return place_experts(model_, settings_, machine_, layout);
  }
  const Strategy strategy = rules.strategy(settings_, layout.places.size());
  auto split = split_graph(model_.graph, shares_of(layout.places), strategy);
  if (!split) return std::unexpected(split.error());
  layout.split = std::move(*split);
  return {};
}

Result<ModelLayout> Placer::lay_out(const Candidate& candidate, uint64_t gpu_bytes) {
  ModelLayout layout;
  layout.devices = candidate.devices;
  const DeviceRules& rules = layout.rules();
  auto checked = check_expert_layers(model_.graph, settings_, rules.traits.experts_by_kind);
  if (!checked) return std::unexpected(checked.error());
  layout.plan_options = rules.plan_options(model_, settings_, candidate.batch_tokens);
  name_devices(machine_.topology, settings_, layout);
  if (auto found = find_gpu_speeds(layout); !found) return std::unexpected(found.error());
  auto places = find_places(settings_, machine_, layout.devices, gpu_bytes, layout.gpu_speeds);
  if (!places) return std::unexpected(places.error());
  layout.places = std::move(*places);
  layout.gpus_linked = check_links(machine_.topology, layout.devices.gpus).has_value();
  if (auto done = split(layout); !done) return std::unexpected(done.error());
  layout.sizes =
      rank_sizes(model_, layout.split, layout.plan_options, 0, layout.places, layout.gpus_linked);
  layout.nccl_bytes = rules.nccl_bytes(machine_, layout.devices, layout.gpus_linked,
                                       layout.sizes.front().message_floats);
  return layout;
}

std::string Placer::obstacle_to(const Result<ModelLayout>& layout) const {
  if (!layout) return layout.error().message;
  ModelLayout whole = *layout;
  const auto sized = size_context(model_, settings_, machine_, whole);
  if (!sized) return sized.error().message;
  const size_t wanted = std::min(model_.trained_context_tokens, kLeastAutomaticContext);
  if (settings_.context_tokens != 0 || whole.context_tokens >= wanted) return "";
  return fmt::format(
      "they leave space for a context of {} tokens alone; give --context {} to have them all the "
      "same",
      whole.context_tokens, whole.context_tokens);
}

Result<ModelLayout> Placer::place() {
  if (auto checked = check_heads(); !checked) return std::unexpected(checked.error());
  const auto least = least_gpu_sizes();
  if (!least) return std::unexpected(least.error());
  auto devices = find_devices(*least);
  if (!devices) return std::unexpected(devices.error());
  const DeviceRules& rules = rules_of(*devices);
  std::vector<Candidate> candidates;
  for (const size_t batch : rules.batches(settings_)) {
    candidates.push_back({*devices, batch, /*must_fit=*/true});
  }
  candidates.back().must_fit = rules.gives_way(*devices);
  std::string obstacle;
  for (const Candidate& candidate : candidates) {
    auto layout = lay_out(candidate, least->gpu_bytes());
    if (!candidate.must_fit) return layout;
    obstacle = obstacle_to(layout);
    if (obstacle.empty()) return layout;
  }
  const DeviceChoice nodes = every_node(machine_.topology, "no GPU, since " + obstacle);
  return lay_out({nodes, settings_.batch_tokens, /*must_fit=*/false}, least->gpu_bytes());
}

}  // namespace lockstep
