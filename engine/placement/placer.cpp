#include "engine/placement/placer.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/placement/device_comparison.h"
#include "engine/placement/device_rules.h"
#include "engine/placement/expert_placement.h"
#include "engine/placement/gpu_traits.h"
#include "engine/placement/layer_placement.h"
#include "engine/placement/memory_fit.h"

namespace lockstep {
namespace {

// Each kind once, in the order of names.
std::string kinds_of(const Topology& topology, const std::vector<int>& gpus) {
  std::set<std::string> kinds;
  for (const int index : gpus) {
    const Gpu& gpu = gpu_at(topology, index);
    kinds.insert(
        fmt::format("{} ({}, {} MiB)", gpu.name, gpu_code_name(gpu), gpu.memory_bytes >> 20U));
  }
  return fmt::format("{}", fmt::join(kinds, ", "));
}

void name_devices(const Topology& topology, const Settings& settings, ModelLayout& layout) {
  layout.arithmetic = layout.rules().arithmetic(settings);
  layout.instruction_set = layout.rules().instruction_set(topology, settings, layout.devices);
  layout.gpu_kinds = kinds_of(topology, layout.devices.gpus);
  std::vector<std::string> titles;
  for (const int gpu : layout.devices.gpus) titles.push_back(gpu_title(gpu_at(topology, gpu)));
  for (const int node : layout.devices.nodes) titles.push_back(fmt::format("node{}", node));
  layout.device_titles = fmt::format("{}", fmt::join(titles, ", "));
}

}  // namespace

Result<void> Placer::check_heads() const {
  for (const GraphNode& node : model_.graph.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    const KvFormats& format = settings_.kv_format;
    const bool in_keys = has_values_in_keys(node);
    const bool alike = format.keys == format.values;
    const char* const of_keys = alike ? "--kv-format" : "--kv-key-format";
    const char* const of_values = alike ? "--kv-format" : "--kv-value-format";
    const std::tuple<KvFormat, size_t, const char*> stored[] = {
        {format.keys, node.head_dimension, of_keys},
        {in_keys ? format.keys : format.values, node.value_dimension,
         in_keys ? of_keys : of_values}};
    for (const auto& [stored_format, dimension, option] : stored) {
      if (kv_format_fits(stored_format, dimension)) continue;
      return invalid_input(
          "KV format {} stores heads in blocks of 32, this model's heads have {} dimensions; use "
          "{} f16",
          settings_.kv_format_name, dimension, option);
    }
    const size_t turned = hadamard_dimensions(node.head_dimension);
    if (in_keys && turns_heads(format.keys) && node.value_dimension % turned != 0) {
      return invalid_input(
          "KV format {} turns {} of a key's dimensions together, and this model's values are its "
          "first {}, no multiple of them; use --kv-format q4_0 or q8_0",
          settings_.kv_format_name, turned, node.value_dimension);
    }
  }
  return {};
}

Result<RankSizes> Placer::least_gpu_sizes() const {
  if (machine_.topology.gpus.empty() || !check_gpu_formats(model_.graph) ||
      !check_gpu_cache(settings_.kv_format, settings_.kv_format_name)) {
    return RankSizes();
  }
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

// As far as GPUs can compute it.
GpuNeeds Placer::least_draft_needs(const GpuNeeds& least) const {
  if (settings_.draft_model == nullptr || least.each_bytes == 0) return {};
  const Model& draft = *settings_.draft_model;
  if (!check_gpu_graph(draft.graph, settings_.without_fusion, GpuCompany::kNobody)) return {};
  ModelLayout layout;
  layout.devices.gpus = {0};
  layout.places = {{.node = -1, .cpus = {}, .device = GpuPlace{0}}};
  layout.plan_options.batch_tokens = settings_.batch_tokens;
  const auto draft_layout =
      lay_out_draft(settings_, machine_, layout.as_places(), Strategy::kGather);
  return draft_layout ? draft_layout->sizes.front().gpu_needs() : GpuNeeds();
}

DeviceChoice Placer::choose_devices_for(const RankSizes& least) const {
  const Topology& topology = machine_.topology;
  uint64_t joined_bytes = 0;
  if (const auto all = choose_devices("gpu", topology, 0)) {
    const bool linked = check_links(topology, all->gpus).has_value();
    const bool sums = settings_.strategy != Strategy::kLayers;
    joined_bytes =
        rules_of(*all).nccl_bytes(machine_, *all, linked, sums ? least.message_floats : 0);
  }
  return *choose_devices("auto", topology, gpu_needs_.shared_bytes + gpu_needs_.each_bytes,
                         joined_bytes);
}

Result<void> Placer::find_gpu_speeds(ModelLayout& layout) {
  if (!layout.rules().shares_follow_gpu_speeds(settings_, machine_.topology, layout.devices)) {
    return {};
  }
  const std::vector<int>& gpus = layout.devices.gpus;
  auto found = gpu_speeds_.find(gpus);
  if (found == gpu_speeds_.end()) {
    auto measured = measure_gpu_speeds(machine_.gpu_platform, machine_.topology, gpus);
    found = gpu_speeds_.emplace(gpus, std::move(measured)).first;
  }
  const Result<GpuSpeeds>& speeds = found->second;
  if (!speeds) return std::unexpected(speeds.error());
  layout.devices.reason +=
      "; shares follow bandwidth, of GPUs " +
      (speeds->measured ? "as measured" : "by their memory's clock and width: " + speeds->doubt);
  layout.gpu_speeds = *speeds;
  return {};
}

Result<void> Placer::add_draft(Strategy strategy, ModelLayout& layout) const {
  if (settings_.draft_model == nullptr) return {};
  auto draft = lay_out_draft(settings_, machine_, layout.as_places(), strategy);
  if (!draft) return std::unexpected(draft.error());
  layout.draft = std::move(*draft);
  return {};
}

// Whole layers are placed beside the draft, once it is known that there are enough of them.
Result<void> Placer::split_by_layers(ModelLayout& layout) const {
  auto layers = place_layers(model_, settings_, machine_, layout);
  if (!layers) return std::unexpected(layers.error());
  if (auto added = add_draft(Strategy::kLayers, layout); !added) return added;
  if (layout.draft) layers = place_layers(model_, settings_, machine_, layout);
  if (!layers) return std::unexpected(layers.error());
  layout.split = std::move(*layers);
  return {};
}

Result<void> Placer::split(ModelLayout& layout) const {
  const DeviceRules& rules = layout.rules();
  if (rules.traits.experts_by_kind && model_.graph.chosen_experts() > 0) {
    return place_experts(model_, settings_, machine_, layout);
  }
  const Strategy strategy = rules.strategy(settings_, layout.places.size());
  if (strategy == Strategy::kLayers) return split_by_layers(layout);
  auto split = split_graph(model_.graph, shares_of(layout.places), strategy);
  if (!split) return std::unexpected(split.error());
  layout.split = std::move(*split);
  return add_draft(strategy, layout);
}

Result<ModelLayout> Placer::lay_out(const DeviceChoice& devices, size_t batch_tokens) {
  ModelLayout layout;
  layout.devices = devices;
  const DeviceRules& rules = layout.rules();
  auto checked = check_expert_layers(model_.graph, settings_, rules.traits.experts_by_kind);
  if (!checked) return std::unexpected(checked.error());
  layout.plan_options = rules.plan_options(model_, settings_, batch_tokens);
  name_devices(machine_.topology, settings_, layout);
  if (auto found = find_gpu_speeds(layout); !found) return std::unexpected(found.error());
  auto places = find_places(settings_, machine_, layout.devices, gpu_needs_, layout.gpu_speeds);
  if (!places) return std::unexpected(places.error());
  layout.places = std::move(*places);
  layout.gpus_linked = check_links(machine_.topology, layout.devices.gpus).has_value();
  if (auto done = split(layout); !done) return std::unexpected(done.error());
  layout.sizes =
      rank_sizes(model_, layout.split, layout.plan_options, 0, layout.places, layout.gpus_linked);
  layout.nccl_bytes = rules.nccl_bytes(machine_, layout.devices, layout.gpus_linked,
                                       layout.sizes.front().message_floats);
  if (!layout.draft) return layout;
  layout.nccl_bytes += rules.nccl_bytes(machine_, layout.devices, layout.gpus_linked,
                                        layout.draft->sizes.front().message_floats);
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

// As the devices are named: the last batch is taken whether it fits or not. What does not fit is
// refused when memory is taken.
Result<ModelLayout> Placer::place_on(const DeviceChoice& devices) {
  const DeviceRules& rules = rules_of(devices);
  if (auto usable = rules.check(model_.graph, settings_, machine_, devices); !usable) {
    return std::unexpected(usable.error());
  }
  DeviceChoice choice = devices;
  choice.reason += rules.sums_text(settings_, machine_.topology, devices);
  const std::vector<size_t> batches = rules.batches(settings_);
  for (const size_t batch : batches | std::views::take(batches.size() - 1)) {
    auto layout = lay_out(choice, batch);
    if (obstacle_to(layout).empty()) return layout;
  }
  return lay_out(choice, batches.back());
}

std::optional<ModelLayout> Placer::find_fitting(const DeviceChoice& devices,
                                                std::string& obstacle) {
  const DeviceRules& rules = rules_of(devices);
  if (auto usable = rules.check(model_.graph, settings_, machine_, devices); !usable) {
    obstacle = usable.error().message;
    return std::nullopt;
  }
  DeviceChoice choice = devices;
  choice.reason += rules.sums_text(settings_, machine_.topology, devices);
  for (const size_t batch : rules.batches(settings_)) {
    auto layout = lay_out(choice, batch);
    obstacle = obstacle_to(layout);
    if (obstacle.empty()) return std::move(*layout);
  }
  return std::nullopt;
}

std::optional<ModelLayout> Placer::find_on_fewer_gpus(const std::string& why_not_all) {
  const Topology& topology = machine_.topology;
  for (const std::vector<int>& gpus : fewer_gpus(topology)) {
    uint64_t space = 0;
    for (const int gpu : gpus) space += usable_bytes(gpu_at(topology, gpu));
    if (space < gpu_needs_.shared_bytes + gpu_needs_.each_bytes) continue;
    const DeviceChoice choice{.nodes = {},
                              .gpus = gpus,
                              .automatic = true,
                              .reason = fmt::format("{} of {} GPUs, since {}", gpus.size(),
                                                    topology.gpus.size(), why_not_all)};
    std::string obstacle;
    if (auto layout = find_fitting(choice, obstacle)) {
      set_idle(topology, why_not_all, "", layout->devices);
      return layout;
    }
  }
  return std::nullopt;
}

// Ranks and shares that were asked for are those of nodes, or of GPUs.
std::optional<ModelLayout> Placer::find_beside_nodes(std::string& why_not_alone) {
  const Topology& topology = machine_.topology;
  const auto every = gpus_beside_nodes(topology, "GPUs beside nodes, since " + why_not_alone);
  if (!every) return std::nullopt;
  if (settings_.rank_count != 0 || !settings_.shares.empty()) {
    why_not_alone +=
        "; nor beside nodes, since the ranks or shares that are asked for are taken to be of one "
        "kind of device";
    return std::nullopt;
  }
  std::vector<std::vector<int>> sets = fewer_gpus(topology);
  sets.insert(sets.begin(), every->gpus);
  std::string why_not_all;
  for (const std::vector<int>& gpus : sets) {
    DeviceChoice choice = *every;
    choice.gpus = gpus;
    std::string obstacle;
    if (auto layout = find_fitting(choice, obstacle)) {
      set_idle(topology, why_not_all, "", layout->devices);
      return layout;
    }
    if (why_not_all.empty()) why_not_all = obstacle;
  }
  if (why_not_all != why_not_alone) why_not_alone += "; nor beside nodes, since " + why_not_all;
  return std::nullopt;
}

Result<ModelLayout> Placer::compare_with_nodes(ModelLayout beside,
                                               const std::string& why_not_alone) {
  const Topology& topology = machine_.topology;
  auto alone = place_on(every_node(topology, ""));
  if (!alone) return beside;
  ModelLayout sized = *alone;
  if (!fits_memory(model_, settings_, machine_, sized)) return beside;
  const auto with_gpus = device_option(model_, machine_, beside);
  const auto without = device_option(model_, machine_, *alone);
  if (!with_gpus || !without) return beside;
  const std::vector<DeviceOption> options = {*with_gpus, *without};
  const size_t chosen = choose_option(options);
  const std::string comparison = compare_options(options, chosen);
  if (chosen == 0) {
    beside.devices.reason += "; " + comparison;
    return beside;
  }
  alone->devices.reason =
      fmt::format("no GPU, since {}; nodes alone are faster: {}", why_not_alone, comparison);
  alone->devices.idle = beside.devices.idle;
  set_idle(topology, comparison, devices_option(topology, beside.devices), alone->devices);
  return alone;
}

Result<ModelLayout> Placer::place_automatically(const DeviceChoice& choice) {
  const bool has_space = rules_of(choice).gives_way(choice);
  std::string obstacle = choice.reason;
  if (has_space) {
    if (auto layout = find_fitting(choice, obstacle)) return std::move(*layout);
  }
  if (auto layout = find_on_fewer_gpus(obstacle)) return std::move(*layout);
  if (auto layout = find_beside_nodes(obstacle)) {
    return compare_with_nodes(std::move(*layout), obstacle);
  }
  DeviceChoice nodes =
      every_node(machine_.topology, has_space ? "no GPU, since " + obstacle : obstacle);
  set_idle(machine_.topology, obstacle, "", nodes);
  return place_on(nodes);
}

// The model does not leave GPUs for the sake of drafts: where it would, it is placed as without
// them, and there the draft is refused, or what both need.
Result<ModelLayout> Placer::stay_on_gpus(Result<ModelLayout> placed) {
  if (settings_.draft_model == nullptr || machine_.gpu_platform == nullptr) return placed;
  Settings without = settings_;
  without.draft_model = nullptr;
  const auto alone = Placer(model_, without, machine_).place();
  if (!alone) return placed;
  const bool stays = placed && placed->devices.nodes.size() <= alone->devices.nodes.size() &&
                     placed->devices.gpus.size() >= std::min<size_t>(1, alone->devices.gpus.size());
  if (stays) return placed;
  return lay_out(alone->devices, alone->plan_options.batch_tokens);
}

Result<ModelLayout> Placer::place() {
  if (auto checked = check_heads(); !checked) return std::unexpected(checked.error());
  const auto least = least_gpu_sizes();
  if (!least) return std::unexpected(least.error());
  gpu_needs_ = least->gpu_needs();
  const GpuNeeds draft_needs = least_draft_needs(gpu_needs_);
  gpu_needs_.shared_bytes += draft_needs.shared_bytes;
  gpu_needs_.each_bytes += draft_needs.each_bytes;
  if (settings_.devices) return place_on(*settings_.devices);
  return stay_on_gpus(place_automatically(choose_devices_for(*least)));
}

}  // namespace lockstep
