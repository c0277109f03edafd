#include "engine/placement/model_layout.h"

#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/collectives/gpu_all_reduce.h"
#include "engine/model/weight_loader.h"
#include "engine/placement/device_places.h"
#include "engine/placement/expert_placement.h"
#include "engine/placement/gpu_layout.h"
#include "engine/placement/model_room.h"
#include "engine/runtime/gpu_program.h"

namespace lockstep {
namespace {

// Rows of logits of one pass: enough for every sequence, and for prompts whose logits are all
// wanted to advance at a fair rate; a row is a whole vocabulary wide.
constexpr size_t kLeastLogitRows = 32;

// Tokens of a pass where nothing was asked for. Where only GPUs compute, any prompted token has the
// whole model unpacked: counted in bytes that takes nearly as long as the products of 512 tokens.
// Not measured.
constexpr size_t kBatchTokens = 512;
constexpr size_t kGpuBatchTokens = 2048;

Result<KvFormat> parse_kv_format(const std::string& name) {
  if (name == "f32") return KvFormat::kF32;
  if (name == "f16") return KvFormat::kF16;
  if (name == "bf16") return KvFormat::kBf16;
  if (name == "q8_0") return KvFormat::kQ8_0;
  return invalid_input("KV format \"{}\" is not known; known are f16, bf16, f32 and q8_0", name);
}

Result<Strategy> parse_strategy(const std::string& name) {
  // Ranks of one process share its memory: pushing whole results is cheap, and keeps the bits.
  if (name == "auto" || name == "gather") return Strategy::kGather;
  if (name == "reduce") return Strategy::kReduce;
  return invalid_input("strategy \"{}\" is not known; known are auto, gather and reduce", name);
}

// What the GPUs must have room for together: the weights once, activations, and the cache that was
// asked for, or a page of it.
Result<RankSizes> least_gpu_sizes(const Model& model, const EngineOptions& options,
                                  const PlanOptions& plan_options) {
  const std::vector<double> alone = {1};
  const auto whole = split_graph(model.graph, alone, Strategy::kGather);
  if (!whole) return std::unexpected(whole.error());
  const size_t pages =
      options.context_tokens != 0 ? wanted_pages(options, options.context_tokens) : 1;
  RankPlace place;
  place.gpu = 0;  // any
  return rank_sizes(model, *whole, plan_options, pages, {&place, 1}, true).front();
}

// `least`: least_gpu_sizes(), where there are GPUs.
Result<DeviceChoice> find_devices(const Model& model, const EngineOptions& options,
                                  const Machine& machine, const RankSizes& least) {
  uint64_t joined_bytes = 0;
  if (const auto all = choose_devices("gpu", machine.topology, 0)) {
    const bool linked = check_links(machine.topology, all->gpus).has_value();
    joined_bytes = nccl_bytes(machine, *all, linked, least.message_floats);
  }
  auto choice = choose_devices(options.devices, machine.topology, least.gpu_bytes(), joined_bytes);
  if (!choice || choice->gpus.empty()) return choice;
  auto usable = check_gpu_use(model.graph, options, machine, *choice);
  if (usable) {
    choice->reason += sums_text(machine.topology, *choice);
    return choice;
  }
  if (!choice->automatic) return std::unexpected(usable.error());
  return every_node(machine.topology, "no GPU, since " + usable.error().message);
}

Result<PlanOptions> plan_options_of(const Model& model, const EngineOptions& options) {
  const auto kv_format = parse_kv_format(options.kv_format);
  if (!kv_format) return std::unexpected(kv_format.error());
  if (options.exchange_format != "f32" && options.exchange_format != "bf16") {
    return invalid_input("exchange format \"{}\" is not known; known are f32 and bf16",
                         options.exchange_format);
  }
  const size_t batch_tokens = options.batch_tokens != 0
                                  ? options.batch_tokens
                                  : std::max<size_t>(kBatchTokens, options.sequence_count);
  if (options.sequence_count == 0 || options.sequence_count > batch_tokens) {
    return invalid_input("sequences is {}; it must be from 1 to the {} tokens of a batch",
                         options.sequence_count, batch_tokens);
  }
  for (const GraphNode& node : model.graph.nodes()) {
    if (node.operation != Operation::kAttention ||
        kv_format_fits(*kv_format, node.head_dimension)) {
      continue;
    }
    return invalid_input(
        "KV format {} stores heads in blocks of 32, this model's heads have {} dimensions; use "
        "--kv-format f16",
        options.kv_format, node.head_dimension);
  }
  PlanOptions plan_options;
  plan_options.batch_tokens = batch_tokens;
  plan_options.logit_rows =
      std::max<size_t>(options.logit_rows == 0 ? kLeastLogitRows
                                               : std::min<size_t>(options.logit_rows, batch_tokens),
                       options.sequence_count);
  plan_options.kv_format = *kv_format;
  plan_options.bf16_sums = options.exchange_format == "bf16";
  return plan_options;
}

// The same where ranks are GPUs. A context that is not known yet is as long as it can be.
PlanOptions options_on_gpus(PlanOptions plan_options, const Model& model,
                            const EngineOptions& options) {
  plan_options.forms = gpu_product_forms();
  plan_options.weight_layout = WeightLayout::kGpuTiles;
  plan_options.sequences = options.sequence_count;
  plan_options.sequence_pages = pages_for(
      options.context_tokens != 0 ? options.context_tokens : model.trained_context_tokens);
  return plan_options;
}

void name_devices(const Topology& topology, std::string_view instruction_set,
                  std::string_view profile, ModelLayout& layout) {
  layout.arithmetic = layout.on_gpus() ? kGpuArithmetic : profile;
  std::vector<std::string> titles;
  for (const int gpu : layout.devices.gpus) titles.push_back(gpu_title(gpu_at(topology, gpu)));
  for (const int node : layout.devices.nodes) titles.push_back(fmt::format("node{}", node));
  layout.device_titles = fmt::format("{}", fmt::join(titles, ", "));
  layout.instruction_set = instruction_set;
  if (!layout.on_gpus()) return;
  layout.instruction_set = gpu_code_name(gpu_at(topology, layout.devices.gpus.front()));
  if (layout.is_mixed()) layout.instruction_set += fmt::format("+{}", instruction_set);
}

// What was measured of the GPUs, or why it was not: once, for all layouts that are tried on them.
using MeasuredSpeeds = std::optional<Result<GpuSpeeds>>;

// Where shares follow them: to open GPUs and to measure them takes its time.
Result<void> find_gpu_speeds(const EngineOptions& options, const Machine& machine,
                             MeasuredSpeeds& measured, ModelLayout& layout) {
  if (!shares_follow_gpu_speeds(options, machine.topology, layout.devices)) return {};
  if (!measured) {
    measured = measure_gpu_speeds(machine.gpu_platform, machine.topology, layout.devices.gpus);
  }
  const Result<GpuSpeeds>& speeds = *measured;
  if (!speeds) return std::unexpected(speeds.error());
  layout.devices.reason +=
      "; shares follow bandwidth, of GPUs " +
      (speeds->measured ? "as measured" : "by their memory's clock and width: " + speeds->doubt);
  layout.gpu_speeds = *speeds;
  return {};
}

// Of a mixture on GPUs and nodes the experts go by kind.
Result<void> split_over_places(const Model& model, const EngineOptions& options, Strategy strategy,
                               const Machine& machine, ModelLayout& layout) {
  if (layout.is_mixed() && model.graph.chosen_experts() > 0) {
    place_by_kind(layout.places);
    return place_experts(model, options, machine, layout);
  }
  auto split = split_graph(model.graph, shares_of(layout.places), strategy);
  if (!split) return std::unexpected(split.error());
  layout.split = std::move(*split);
  return {};
}

Result<ModelLayout> split_over(const Model& model, const EngineOptions& options,
                               const KernelTable& kernels, const Machine& machine,
                               PlanOptions plan_options, DeviceChoice devices, uint64_t gpu_bytes,
                               MeasuredSpeeds& measured) {
  const auto profile = choose_profile(options.arithmetic, kernels);
  if (!profile) return std::unexpected(profile.error());
  auto strategy = parse_strategy(options.strategy);
  if (!strategy) return std::unexpected(strategy.error());
  ModelLayout layout;
  layout.devices = std::move(devices);
  if (auto checked = check_expert_layers(model.graph, options, layout.is_mixed()); !checked) {
    return std::unexpected(checked.error());
  }
  layout.plan_options =
      layout.on_gpus() ? options_on_gpus(plan_options, model, options) : plan_options;
  // Of GPUs options_on() makes it again.
  if (layout.is_mixed()) layout.plan_options.weight_layout = WeightLayout::kPanels;
  if (!layout.on_gpus() || layout.is_mixed()) {
    layout.plan_options.forms = product_forms(*profile, kernels);
    layout.plan_options.prompt_attention =
        prompt_attention(*profile, kernels, plan_options.kv_format);
  }
  name_devices(machine.topology, kernels.name, profile_name(*profile), layout);
  if (auto found = find_gpu_speeds(options, machine, measured, layout); !found) {
    return std::unexpected(found.error());
  }
  auto places = find_places(options, machine, layout.devices, gpu_bytes, layout.gpu_speeds);
  if (!places) return std::unexpected(places.error());
  layout.places = std::move(*places);
  layout.gpus_linked = check_links(machine.topology, layout.devices.gpus).has_value();
  // GPUs sum their parts: pushing whole results would need all of them to meet four times a layer.
  // One alone has nothing to sum.
  if (layout.on_gpus()) {
    strategy = layout.places.size() > 1 ? Strategy::kReduce : Strategy::kGather;
  }
  if (auto split = split_over_places(model, options, *strategy, machine, layout); !split) {
    return std::unexpected(split.error());
  }
  layout.sizes =
      rank_sizes(model, layout.split, layout.plan_options, 0, layout.places, layout.gpus_linked);
  layout.nccl_bytes =
      nccl_bytes(machine, layout.devices, layout.gpus_linked, layout.sizes.front().message_floats);
  return layout;
}

// Why a layout on GPUs that nobody has asked for is not to be used; nothing: it is.
std::string obstacle_to(const Model& model, const EngineOptions& options, const Machine& machine,
                        const Result<ModelLayout>& layout) {
  if (!layout) return layout.error().message;
  ModelLayout whole = *layout;
  const auto sized = size_context(model, options, machine, whole);
  if (!sized) return sized.error().message;
  const size_t wanted = std::min(model.trained_context_tokens, kLeastAutomaticContext);
  if (options.context_tokens != 0 || whole.context_tokens >= wanted) return "";
  return fmt::format("they leave room for a context of {} tokens alone", whole.context_tokens);
}

}  // namespace

std::vector<RankSizes> rank_sizes(const Model& model, const Split& split, PlanOptions options,
                                  size_t kv_pages, std::span<const RankPlace> places,
                                  bool gpus_linked) {
  const auto is_gpu = [](const RankPlace& place) { return place.gpu >= 0; };
  const bool all_gpus = std::ranges::all_of(places, is_gpu);
  options.kv_pages = kv_pages;
  std::vector<RankSizes> sizes;
  for (size_t rank = 0; rank < split.rank_count; ++rank) {
    const Plan plan = make_plan(model.graph, split, rank, options_on(places[rank], options));
    RankSizes& own = sizes.emplace_back();
    own.weight_bytes = plan.weight_bytes;
    own.kv_bytes = plan.kv.size_bytes();
    own.scratch_bytes = plan.scratch_bytes;
    own.exchange_bytes = plan.exchange_bytes;
    own.logits_bytes = plan.logits_bytes;
    own.on_gpu = is_gpu(places[rank]);
    own.exchange_on_host = !all_gpus;
    own.logits_on_host = !all_gpus || !gpus_linked;
    if (!own.on_gpu) continue;
    own.staging_bytes = gpu_staging_bytes_max(model.graph);
    if (!own.logits_on_host) own.candidate_bytes = plan.candidate_bytes;
    if (!all_gpus) continue;  // then passes are not recorded, and sums are the host's
    own.recording_bytes = recording_bytes(plan);
    own.message_floats = exchanged_floats_max(plan);
    if (places.size() > 1 && gpus_linked) {
      own.mailbox_bytes = gpu_mailbox_bytes(places.size(), GpuPeers().channel_count);
    }
  }
  return sizes;
}

Result<ModelLayout> split_model(const Model& model, const EngineOptions& options,
                                const KernelTable& kernels, const Machine& machine) {
  auto plan_options = plan_options_of(model, options);
  if (!plan_options) return std::unexpected(plan_options.error());
  RankSizes least;
  if (!machine.topology.gpus.empty()) {
    const auto sizes =
        least_gpu_sizes(model, options, options_on_gpus(*plan_options, model, options));
    if (!sizes) return std::unexpected(sizes.error());
    least = *sizes;
  }
  const uint64_t gpu_bytes = least.gpu_bytes();
  auto devices = find_devices(model, options, machine, least);
  if (!devices) return std::unexpected(devices.error());
  MeasuredSpeeds measured;
  const auto layout_on = [&](const DeviceChoice& choice, size_t batch_tokens) {
    PlanOptions sized = *plan_options;
    sized.batch_tokens = batch_tokens;
    return split_over(model, options, kernels, machine, sized, choice, gpu_bytes, measured);
  };
  const size_t batch_tokens = plan_options->batch_tokens;
  if (devices->gpus.empty()) return layout_on(*devices, batch_tokens);
  if (options.batch_tokens == 0 && devices->nodes.empty()) {
    auto layout = layout_on(*devices, std::max(kGpuBatchTokens, batch_tokens));
    if (obstacle_to(model, options, machine, layout).empty()) return layout;
  }
  auto layout = layout_on(*devices, batch_tokens);
  if (!devices->automatic) return layout;
  // Nobody has asked for them: where something does not go on them after all, the nodes compute.
  const std::string obstacle = obstacle_to(model, options, machine, layout);
  if (obstacle.empty()) return layout;
  return layout_on(every_node(machine.topology, "no GPU, since " + obstacle), batch_tokens);
}

}  // namespace lockstep
