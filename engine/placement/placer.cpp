#include "engine/placement/placer.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/placement/device_places.h"
#include "engine/placement/expert_placement.h"
#include "engine/placement/gpu_layout.h"
#include "engine/placement/model_room.h"

namespace lockstep {
namespace {

// Tokens of a pass where nothing was asked for and only GPUs compute: any
// prompted token has the whole model unpacked: counted in bytes that takes
// nearly as long as the products of 512 tokens. Not measured.
constexpr size_t kGpuBatchTokens = 2048;

void name_devices(const Topology& topology, const Settings& settings, ModelLayout& layout) {
  const std::string_view row = settings.kernels->name;
  layout.arithmetic = layout.on_gpus() ? kGpuArithmetic : profile_name(settings.profile);
  std::vector<std::string> titles;
  for (const int gpu : layout.devices.gpus) titles.push_back(gpu_title(gpu_at(topology, gpu)));
  for (const int node : layout.devices.nodes) titles.push_back(fmt::format("node{}", node));
  layout.device_titles = fmt::format("{}", fmt::join(titles, ", "));
  layout.instruction_set = row;
  if (!layout.on_gpus()) return;
  layout.instruction_set = gpu_code_name(gpu_at(topology, layout.devices.gpus.front()));
  if (layout.is_mixed()) layout.instruction_set += fmt::format("+{}", row);
}

}  // namespace

Result<void> Placer::check_heads() const {
  for (const GraphNode& node : model_.graph.nodes()) {
    if (node.operation != Operation::kAttention ||
        kv_format_fits(settings_.kv_format, node.head_dimension)) {
      continue;
    }
    return invalid_input(
        "KV format {} stores heads in blocks of 32, this model's heads have {} dimensions; use "
        "--kv-format f16",
        settings_.kv_format_name, node.head_dimension);
  }
  return {};
}

// A context that is not known yet is as long as it can be.
PlanOptions Placer::options_on_gpus(PlanOptions options) const {
  options.forms = gpu_product_forms();
  options.sequences = settings_.sequence_count;
  options.sequence_pages = pages_for(settings_.context_or(model_.trained_context_tokens));
  return options;
}

PlanOptions Placer::plan_options(const DeviceChoice& devices, size_t batch_tokens) const {
  PlanOptions options;
  options.batch_tokens = batch_tokens;
  options.logit_rows = settings_.logit_rows;
  options.kv_format = settings_.kv_format;
  options.bf16_sums = settings_.bf16_sums;
  if (!devices.gpus.empty()) options = options_on_gpus(options);
  if (devices.nodes.empty()) return options;
  // options_on() makes them again for GPUs.
  options.forms = product_forms(settings_.profile, *settings_.kernels);
  options.prompt_attention =
      prompt_attention(settings_.profile, *settings_.kernels, settings_.kv_format);
  return options;
}

Result<RankSizes> Placer::least_gpu_sizes() const {
  if (machine_.topology.gpus.empty()) return RankSizes();
  const std::vector<double> alone = {1};
  const auto whole = split_graph(model_.graph, alone, Strategy::kGather);
  if (!whole) return std::unexpected(whole.error());
  const size_t context = settings_.context_tokens;
  const size_t pages = context != 0 ? wanted_pages(settings_, context) : 1;
  const PlanOptions options =
      plan_options({.nodes = {}, .gpus = {0}, .reason = {}}, settings_.batch_tokens);
  RankPlace place;
  place.gpu = 0;  // any
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
      joined_bytes = nccl_bytes(machine_, *all, linked, least.message_floats);
    }
    choice = *choose_devices("auto", topology, least.gpu_bytes(), joined_bytes);
  }
  if (choice.gpus.empty()) return choice;
  auto usable = check_gpu_use(model_.graph, settings_, machine_, choice);
  if (usable) {
    choice.reason += sums_text(topology, choice);
    return choice;
  }
  if (!choice.automatic) return std::unexpected(usable.error());
  return every_node(topology, "no GPU, since " + usable.error().message);
}

Result<void> Placer::find_gpu_speeds(ModelLayout& layout) {
  if (!shares_follow_gpu_speeds(settings_, machine_.topology, layout.devices)) return {};
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

// On GPUs and nodes, a mixture's experts are placed by kind of device.
Result<void> Placer::split(ModelLayout& layout) const {
  if (layout.is_mixed() && model_.graph.chosen_experts() > 0) {
    place_by_kind(layout.places);
    return place_experts(model_, settings_, machine_, layout);
  }
  // Ranks of one process share its memory: pushing whole results is cheap, and
  // keeps the bits.
  Strategy strategy = settings_.strategy.value_or(Strategy::kGather);
  // GPUs sum their parts: pushing whole results would need all of them to meet
  // four times a layer. One alone has nothing to sum.
  if (layout.on_gpus()) {
    strategy = layout.places.size() > 1 ? Strategy::kReduce : Strategy::kGather;
  }
  auto split = split_graph(model_.graph, shares_of(layout.places), strategy);
  if (!split) return std::unexpected(split.error());
  layout.split = std::move(*split);
  return {};
}

Result<ModelLayout> Placer::lay_out(const Candidate& candidate, uint64_t gpu_bytes) {
  ModelLayout layout;
  layout.devices = candidate.devices;
  if (auto checked = check_expert_layers(model_.graph, settings_, layout.is_mixed()); !checked) {
    return std::unexpected(checked.error());
  }
  layout.plan_options = plan_options(layout.devices, candidate.batch_tokens);
  name_devices(machine_.topology, settings_, layout);
  if (auto found = find_gpu_speeds(layout); !found) return std::unexpected(found.error());
  auto places = find_places(settings_, machine_, layout.devices, gpu_bytes, layout.gpu_speeds);
  if (!places) return std::unexpected(places.error());
  layout.places = std::move(*places);
  layout.gpus_linked = check_links(machine_.topology, layout.devices.gpus).has_value();
  if (auto done = split(layout); !done) return std::unexpected(done.error());
  layout.sizes =
      rank_sizes(model_, layout.split, layout.plan_options, 0, layout.places, layout.gpus_linked);
  layout.nccl_bytes =
      nccl_bytes(machine_, layout.devices, layout.gpus_linked, layout.sizes.front().message_floats);
  return layout;
}

std::string Placer::obstacle_to(const Result<ModelLayout>& layout) const {
  if (!layout) return layout.error().message;
  ModelLayout whole = *layout;
  const auto sized = size_context(model_, settings_, machine_, whole);
  if (!sized) return sized.error().message;
  const size_t wanted = std::min(model_.trained_context_tokens, kLeastAutomaticContext);
  if (settings_.context_tokens != 0 || whole.context_tokens >= wanted) return "";
  return fmt::format("they leave room for a context of {} tokens alone", whole.context_tokens);
}

Result<ModelLayout> Placer::place() {
  if (auto checked = check_heads(); !checked) return std::unexpected(checked.error());
  const auto least = least_gpu_sizes();
  if (!least) return std::unexpected(least.error());
  auto devices = find_devices(*least);
  if (!devices) return std::unexpected(devices.error());
  const bool on_gpus = !devices->gpus.empty();
  const size_t batch = settings_.batch_tokens;
  std::vector<Candidate> candidates;
  if (on_gpus && devices->nodes.empty() && !settings_.batch_is_given) {
    candidates.push_back({*devices, std::max(kGpuBatchTokens, batch), /*must_fit=*/true});
  }
  // Nobody has asked for GPUs that were chosen automatically.
  candidates.push_back({*devices, batch, /*must_fit=*/on_gpus && devices->automatic});
  std::string obstacle;
  for (const Candidate& candidate : candidates) {
    auto layout = lay_out(candidate, least->gpu_bytes());
    if (!candidate.must_fit) return layout;
    obstacle = obstacle_to(layout);
    if (obstacle.empty()) return layout;
  }
  const DeviceChoice nodes = every_node(machine_.topology, "no GPU, since " + obstacle);
  return lay_out({nodes, batch, /*must_fit=*/false}, least->gpu_bytes());
}

}  // namespace lockstep
