#include "engine/model_layout.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/log.h"
#include "engine/collectives/gpu_all_reduce.h"
#include "engine/device_places.h"
#include "engine/gpu_layout.h"
#include "engine/machine/bandwidth.h"
#include "engine/machine/control_group.h"
#include "engine/machine/memory_room.h"
#include "engine/machine/node_memory.h"
#include "engine/model/weight_loader.h"
#include "engine/runtime/gpu_program.h"

namespace lockstep {
namespace {

// Rows of logits of one pass: enough for every sequence, and for prompts whose logits are all
// wanted to advance at a fair rate; a row is a whole vocabulary wide.
constexpr size_t kLeastLogitRows = 32;

// The share of the memory left beside the weights that an automatic context may take.
constexpr uint64_t kKvShareDivisor = 2;

Result<KvFormat> parse_kv_format(const std::string& name) {
  if (name == "f32") return KvFormat::kF32;
  if (name == "f16") return KvFormat::kF16;
  if (name == "bf16") return KvFormat::kBf16;
  if (name == "q8_0") return KvFormat::kQ8_0;
  return invalid_input("KV format \"{}\" is not known; known are f16, bf16, f32 and q8_0", name);
}

// Which a default must leave on GPUs, unless the model was trained for less.
constexpr size_t kLeastAutomaticContext = 4096;

Result<Strategy> parse_strategy(const std::string& name) {
  // Ranks of one process share its memory: pushing whole results is cheap, and keeps the bits.
  if (name == "auto" || name == "gather") return Strategy::kGather;
  if (name == "reduce") return Strategy::kReduce;
  return invalid_input("strategy \"{}\" is not known; known are auto, gather and reduce", name);
}

size_t pages_for(size_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

// Pages that hold full sequences, or as many as are asked for.
size_t wanted_pages(const EngineOptions& options, size_t context_tokens) {
  return options.kv_pages != 0 ? options.kv_pages
                               : pages_for(context_tokens) * options.sequence_count;
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
                                  const Topology& topology, const RankSizes& least) {
  uint64_t joined_bytes = 0;
  if (const auto all = choose_devices("gpu", topology, 0)) {
    const bool linked = check_links(topology, all->gpus).has_value();
    joined_bytes = nccl_bytes(options, *all, linked, least.message_floats);
  }
  auto choice = choose_devices(options.devices, topology, least.gpu_bytes(), joined_bytes);
  if (!choice || choice->gpus.empty()) return choice;
  auto usable = check_gpu_use(model.graph, options, topology, *choice);
  if (usable) {
    choice->reason += sums_text(topology, *choice);
    return choice;
  }
  if (!choice->automatic) return std::unexpected(usable.error());
  return every_node(topology, "no GPU, since " + usable.error().message);
}

std::string place_text(const RankPlace& place) {
  if (place.gpu >= 0) return fmt::format("gpu{}", place.gpu);
  return place.node < 0 ? "this machine" : fmt::format("node {}", place.node);
}

// "12 MiB for weights, 3 MiB for the KV cache and 1 MiB for activations"
std::string needs_text(const ModelLayout& layout, size_t rank, bool with_cache) {
  const RankSizes& sizes = layout.sizes[rank];
  const auto need = [](uint64_t bytes, std::string_view what) {
    return fmt::format("{} MiB for {}", bytes >> 20U, what);
  };
  std::vector<std::string> needs = {need(sizes.weight_bytes, "weights")};
  if (with_cache) needs.push_back(need(sizes.kv_bytes, "the KV cache"));
  needs.push_back(need(sizes.activation_bytes() - sizes.hosted_bytes(), "activations"));
  for (const MachinePlan::Need& other : other_needs(layout, rank)) {
    needs.push_back(need(other.bytes, other.what));
  }
  const std::string last = std::move(needs.back());
  needs.pop_back();
  return fmt::format("{} and {}", fmt::join(needs, ", "), last);
}

// Room on all that ranks may lie on.
struct Rooms {
  Rooms(const Topology& topology, const ModelLayout& layout)
      : memory(topology, available_memory_bytes()), gpus(topology, layout.nccl_bytes) {}

  MemoryRoom memory;
  GpuRoom gpus;
};

// Takes room for all arenas that are not there already, in the order in which a rank takes them in
// earnest. The rank for which there was none, if any.
std::optional<size_t> take_all(const ModelLayout& layout, Rooms& rooms) {
  for (size_t rank = 0; rank < layout.places.size(); ++rank) {
    const RankPlace& place = layout.places[rank];
    const RankSizes& own = layout.sizes[rank];
    if (own.on_gpu) {
      if (!rooms.gpus.take(place.gpu, own.gpu_bytes())) return rank;
      for (const uint64_t bytes : {own.candidate_bytes, own.host_bytes() - own.candidate_bytes}) {
        if (!rooms.memory.take(place.node, bytes)) return rank;
      }
      continue;
    }
    const uint64_t weight_bytes = layout.weights_held ? 0 : own.weight_bytes;
    const uint64_t kv_bytes = layout.kv_pages_held ? 0 : own.kv_bytes;
    for (const uint64_t bytes :
         {weight_bytes, own.scratch_bytes, own.exchange_bytes, kv_bytes, own.logits_bytes}) {
      if (!rooms.memory.take(place.node, bytes)) return rank;
    }
  }
  return std::nullopt;
}

// How many pages of the cache there is room for, and the rank that has none for another.
struct PageRoom {
  size_t pages = 0;
  size_t rank = 0;
};

// Of those wanted, as many pages as the nodes have room for, with a share of what is left to
// others.
PageRoom node_pages(const ModelLayout& layout, const MemoryRoom& room,
                    const std::vector<RankSizes>& one_page, size_t wanted) {
  std::map<int, uint64_t> page_bytes;  // by node
  for (size_t rank = 0; rank < layout.places.size(); ++rank) {
    if (layout.places[rank].gpu >= 0) continue;
    page_bytes[layout.places[rank].node] += one_page[rank].kv_bytes;
    page_bytes[-1] += one_page[rank].kv_bytes;  // what all nodes take together
  }
  PageRoom found{.pages = wanted};
  for (const auto& [node, bytes] : page_bytes) {
    if (bytes == 0) continue;
    // Each rank's cache begins a page of the pool.
    const uint64_t rounding = layout.places.size() * (2U << 20U);
    const uint64_t pool = room.pool_bytes(node);
    const uint64_t left =
        std::max(room.free_bytes(node) / kKvShareDivisor, pool - std::min(pool, rounding));
    if (left / bytes >= found.pages) continue;
    found.pages = left / bytes;
    const auto is_here = [here = node](const RankPlace& place) {
      return place.gpu < 0 && (here < 0 || place.node == here);
    };
    const auto rank = std::ranges::find_if(layout.places, is_here);
    found.rank = static_cast<size_t>(rank - layout.places.begin());
  }
  return found;
}

// The sizes with so many pages, of which a sequence has no more than the model was trained for.
std::vector<RankSizes> sizes_with(const Model& model, const ModelLayout& layout, size_t pages) {
  PlanOptions options = layout.plan_options;
  if (layout.on_gpus()) {
    options.sequence_pages = std::min(pages, pages_for(model.trained_context_tokens));
  }
  return rank_sizes(model, layout.split, options, pages, layout.places, layout.gpus_linked);
}

// Of those wanted, as many pages as GPUs have room for, whose memory nobody else is to have. What
// attention needs beside the cache grows with it.
PageRoom gpu_pages(const Model& model, const ModelLayout& layout, const Topology& topology,
                   PageRoom wanted) {
  const auto misfit_of = [&](size_t pages) -> std::optional<size_t> {
    const auto sizes = sizes_with(model, layout, pages);
    GpuRoom room(topology, layout.nccl_bytes);
    for (size_t rank = 0; rank < layout.places.size(); ++rank) {
      if (!sizes[rank].on_gpu) continue;
      if (!room.take(layout.places[rank].gpu, sizes[rank].gpu_bytes())) return rank;
    }
    return std::nullopt;
  };
  if (!layout.on_gpus()) return wanted;
  auto misfit = misfit_of(wanted.pages);
  if (!misfit) return wanted;
  PageRoom found{.pages = 0, .rank = *misfit};
  size_t too_many = wanted.pages;
  while (found.pages + 1 < too_many) {
    const size_t pages = found.pages + (too_many - found.pages) / 2;
    misfit = misfit_of(pages);
    if (misfit) found.rank = *misfit;
    (misfit ? too_many : found.pages) = pages;
  }
  return found;
}

// As many pages as fit beside weights and activations; at most those wanted.
Result<size_t> fitting_pages(const Model& model, const ModelLayout& layout,
                             const Topology& topology, size_t wanted) {
  Rooms rooms(topology, layout);
  const auto misfit = take_all(layout, rooms);
  const auto one_page = sizes_with(model, layout, 1);
  const PageRoom found =
      gpu_pages(model, layout, topology, node_pages(layout, rooms.memory, one_page, wanted));
  if (!misfit && found.pages > 0) return found.pages;
  const size_t rank = misfit.value_or(found.rank);
  return machine_refused(
      "rank {} needs {} on {}, where {} MiB are available; {}. {}, or free memory", rank,
      needs_text(layout, rank, /*with_cache=*/false), place_text(layout.places[rank]),
      takeable_bytes(topology, layout.places[rank]) >> 20U,
      misfit ? "they do not fit" : "nothing is left for a context",
      layout.on_gpus() ? "Use a smaller model or --devices cpu"
                       : "Use a smaller model, more of --ranks or other --shares");
}

Result<PlanOptions> plan_options_of(const Model& model, const EngineOptions& options) {
  const auto kv_format = parse_kv_format(options.kv_format);
  if (!kv_format) return std::unexpected(kv_format.error());
  if (options.exchange_format != "f32" && options.exchange_format != "bf16") {
    return invalid_input("exchange format \"{}\" is not known; known are f32 and bf16",
                         options.exchange_format);
  }
  if (options.sequence_count == 0 || options.sequence_count > options.batch_tokens) {
    return invalid_input("sequences is {}; it must be from 1 to the {} tokens of a batch",
                         options.sequence_count, options.batch_tokens);
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
  plan_options.batch_tokens = options.batch_tokens;
  plan_options.logit_rows = std::max<size_t>(
      options.logit_rows == 0 ? kLeastLogitRows : options.logit_rows, options.sequence_count);
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

Result<ModelLayout> split_over(const Model& model, const EngineOptions& options,
                               const KernelTable& kernels, const Topology& topology,
                               PlanOptions plan_options, DeviceChoice devices, uint64_t gpu_bytes) {
  const auto profile = choose_profile(options.arithmetic, kernels);
  if (!profile) return std::unexpected(profile.error());
  auto strategy = parse_strategy(options.strategy);
  if (!strategy) return std::unexpected(strategy.error());
  ModelLayout layout;
  layout.devices = std::move(devices);
  layout.plan_options =
      layout.on_gpus() ? options_on_gpus(plan_options, model, options) : plan_options;
  // Of GPUs options_on() makes it again.
  if (layout.is_mixed()) layout.plan_options.weight_layout = WeightLayout::kPanels;
  if (!layout.on_gpus() || layout.is_mixed()) {
    layout.plan_options.forms = product_forms(*profile, kernels);
  }
  name_devices(topology, kernels.name, profile_name(*profile), layout);
  auto places = find_places(options, topology, layout.devices, gpu_bytes);
  if (!places) return std::unexpected(places.error());
  layout.places = std::move(*places);
  std::vector<double> shares;
  for (const RankPlace& place : layout.places) shares.push_back(place.share);
  // GPUs sum their parts: pushing whole results would need all of them to meet four times a layer.
  // One alone has nothing to sum.
  if (layout.on_gpus()) {
    strategy = layout.places.size() > 1 ? Strategy::kReduce : Strategy::kGather;
  }
  auto split = split_graph(model.graph, shares, *strategy);
  if (!split) return std::unexpected(split.error());
  layout.split = std::move(*split);
  layout.gpus_linked = check_links(topology, layout.devices.gpus).has_value();
  layout.sizes =
      rank_sizes(model, layout.split, layout.plan_options, 0, layout.places, layout.gpus_linked);
  layout.nccl_bytes =
      nccl_bytes(options, layout.devices, layout.gpus_linked, layout.sizes.front().message_floats);
  return layout;
}

}  // namespace

uint64_t takeable_bytes(const Topology& topology, int node) {
  uint64_t pool_bytes = 0;
  uint64_t free_bytes = 0;
  for (const Node& each : topology.nodes) {
    if (node >= 0 && each.id != node) continue;
    free_bytes += each.free_bytes;
    for (const HugePagePool& pool : each.pools) pool_bytes += pool.free_pages * pool.page_bytes;
  }
  const bool whole_machine = node < 0 || topology.nodes.size() == 1;
  const uint64_t available = available_memory_bytes();
  return (whole_machine ? available : std::min(available, free_bytes)) + pool_bytes;
}

uint64_t takeable_bytes(const Topology& topology, const RankPlace& place) {
  return place.gpu < 0 ? takeable_bytes(topology, place.node)
                       : usable_bytes(gpu_at(topology, place.gpu));
}

std::vector<MachinePlan::Need> other_needs(const ModelLayout& layout, size_t rank) {
  const RankSizes& sizes = layout.sizes[rank];
  if (!sizes.on_gpu) return {};
  std::vector<MachinePlan::Need> needs = {{"its load", sizes.staging_bytes},
                                          {"recordings of passes", sizes.recording_bytes},
                                          {"sums over peer memory", sizes.mailbox_bytes},
                                          {"NCCL", layout.nccl_bytes}};
  std::erase_if(needs, [](const MachinePlan::Need& need) { return need.bytes == 0; });
  return needs;
}

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

Topology read_machine_with_gpus(const EngineOptions& options) {
  Topology topology = read_topology();
  if (options.gpus == nullptr) {
    add_gpus(topology);
  } else {
    topology.gpus = *options.gpus;
    topology.no_gpus = "none were made up";
  }
  return topology;
}

Topology read_machine(const EngineOptions& options) {
  return may_choose_gpus(options.devices) ? read_machine_with_gpus(options) : read_topology();
}

Result<ModelLayout> split_model(const Model& model, const EngineOptions& options,
                                const KernelTable& kernels, const Topology& topology) {
  auto plan_options = plan_options_of(model, options);
  if (!plan_options) return std::unexpected(plan_options.error());
  RankSizes least;
  if (!topology.gpus.empty()) {
    const auto sizes =
        least_gpu_sizes(model, options, options_on_gpus(*plan_options, model, options));
    if (!sizes) return std::unexpected(sizes.error());
    least = *sizes;
  }
  const uint64_t gpu_bytes = least.gpu_bytes();
  auto devices = find_devices(model, options, topology, least);
  if (!devices) return std::unexpected(devices.error());
  auto layout = split_over(model, options, kernels, topology, *plan_options, *devices, gpu_bytes);
  if (!devices->automatic || devices->gpus.empty()) return layout;
  // Nobody has asked for them: where something does not go on them after all, the nodes compute.
  std::string obstacle = layout ? "" : layout.error().message;
  if (layout) {
    ModelLayout whole = *layout;
    const auto sized = size_context(model, options, topology, whole);
    const size_t wanted = std::min(model.trained_context_tokens, kLeastAutomaticContext);
    if (!sized) {
      obstacle = sized.error().message;
    } else if (options.context_tokens == 0 && whole.context_tokens < wanted) {
      obstacle =
          fmt::format("they leave room for a context of {} tokens alone", whole.context_tokens);
    }
  }
  if (obstacle.empty()) return layout;
  return split_over(model, options, kernels, topology, *plan_options,
                    every_node(topology, "no GPU, since " + obstacle), gpu_bytes);
}

std::optional<size_t> first_misfit(const ModelLayout& layout, const Topology& topology) {
  Rooms rooms(topology, layout);
  return take_all(layout, rooms);
}

Result<void> size_context(const Model& model, const EngineOptions& options,
                          const Topology& topology, ModelLayout& layout) {
  size_t pages = 0;
  if (options.context_tokens != 0) {
    if (options.context_tokens > model.trained_context_tokens) {
      spdlog::warn("the context of {} tokens is longer than the {} the model was trained for",
                   options.context_tokens, model.trained_context_tokens);
    }
    layout.context_tokens = options.context_tokens;
    pages = wanted_pages(options, options.context_tokens);
    if (pages < pages_for(options.context_tokens)) {
      return invalid_input("kv-pages is {}, but a sequence of {} tokens takes {} pages of {}",
                           pages, options.context_tokens, pages_for(options.context_tokens),
                           kPageTokens);
    }
  } else if (layout.kv_pages_held) {
    pages = *layout.kv_pages_held;
    layout.context_tokens = std::min(model.trained_context_tokens, pages * kPageTokens);
  } else {
    const auto fitting =
        fitting_pages(model, layout, topology, wanted_pages(options, model.trained_context_tokens));
    if (!fitting) return std::unexpected(fitting.error());
    pages = *fitting;
    layout.context_tokens = std::min(model.trained_context_tokens, pages * kPageTokens);
  }
  layout.plan_options.kv_pages = pages;
  if (layout.on_gpus()) layout.plan_options.sequence_pages = pages_for(layout.context_tokens);
  layout.sizes = rank_sizes(model, layout.split, layout.plan_options, pages, layout.places,
                            layout.gpus_linked);
  const auto misfit = first_misfit(layout, topology);
  if (!misfit) return {};
  const RankPlace& place = layout.places[*misfit];
  return machine_refused(
      "rank {} needs {} on {}, where ranks share {} MiB. Use a smaller model, --context or "
      "--sequences, or free memory",
      *misfit, needs_text(layout, *misfit, /*with_cache=*/true), place_text(place),
      takeable_bytes(topology, place) >> 20U);
}

}  // namespace lockstep
