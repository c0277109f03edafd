#include "engine/model_layout.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/log.h"
#include "engine/machine/bandwidth.h"
#include "engine/machine/control_group.h"
#include "engine/machine/memory_room.h"
#include "engine/machine/node_memory.h"

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

Result<Strategy> parse_strategy(const std::string& name) {
  // Ranks of one process share its memory: pushing whole results is cheap, and keeps the bits.
  if (name == "auto" || name == "gather") return Strategy::kGather;
  if (name == "reduce") return Strategy::kReduce;
  return invalid_input("strategy \"{}\" is not known; known are auto, gather and reduce", name);
}

size_t pages_for(size_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

// What the devices must have room for together: the weights once, one page of cache, activations.
Result<uint64_t> least_bytes(const Model& model, const PlanOptions& options) {
  const std::vector<double> alone = {1};
  const auto whole = split_graph(model.graph, alone, Strategy::kGather);
  if (!whole) return std::unexpected(whole.error());
  return rank_sizes(model, *whole, options, 1).front().total_bytes();
}

Result<DeviceChoice> find_devices(const Model& model, const EngineOptions& options,
                                  const PlanOptions& plan_options, const Topology& topology) {
  uint64_t model_bytes = 0;
  if (!topology.gpus.empty()) {
    const auto bytes = least_bytes(model, plan_options);
    if (!bytes) return std::unexpected(bytes.error());
    model_bytes = *bytes;
  }
  auto choice = choose_devices(options.devices, topology, model_bytes);
  return choice ? without_gpus(std::move(*choice), topology) : choice;
}

Result<std::vector<RankPlace>> find_places(const EngineOptions& options, const Topology& topology,
                                           const DeviceChoice& devices) {
  auto places = place_ranks(topology, {.nodes = devices.nodes,
                                       .rank_count = options.rank_count,
                                       .shares = options.shares,
                                       .worker_count = options.worker_count,
                                       .reserved_cores = options.reserved_cores,
                                       .cpu_limit = read_control_group_limits().cpus});
  if (!places || !options.measure_shares || places->size() == 1) return places;
  const auto bandwidths = measure_read_bandwidths(*places);
  if (!bandwidths) return std::unexpected(bandwidths.error());
  for (size_t rank = 0; rank < places->size(); ++rank) (*places)[rank].share = (*bandwidths)[rank];
  return places;
}

std::string node_text(int node) {
  return node < 0 ? "this machine" : fmt::format("node {}", node);
}

// Takes room for all arenas that are not there already, in the order in which a rank takes them in
// earnest. The rank for which there was none, if any.
std::optional<size_t> take_all(const ModelLayout& layout, MemoryRoom& room) {
  for (size_t rank = 0; rank < layout.places.size(); ++rank) {
    const RankSizes& own = layout.sizes[rank];
    const uint64_t weight_bytes = layout.weights_held ? 0 : own.weight_bytes;
    const uint64_t kv_bytes = layout.kv_pages_held ? 0 : own.kv_bytes;
    for (const uint64_t bytes :
         {weight_bytes, own.scratch_bytes, own.exchange_bytes, kv_bytes, own.logits_bytes}) {
      if (!room.take(layout.places[rank].node, bytes)) return rank;
    }
  }
  return std::nullopt;
}

// As many pages as fit beside weights and activations, with a share of what is left to others; at
// most those wanted.
Result<size_t> fitting_pages(const ModelLayout& layout, const Topology& topology,
                             const std::vector<RankSizes>& one_page, size_t wanted) {
  MemoryRoom room(topology, available_memory_bytes());
  const auto misfit = take_all(layout, room);
  std::map<int, uint64_t> page_bytes;  // by node
  for (size_t rank = 0; rank < layout.places.size(); ++rank) {
    page_bytes[layout.places[rank].node] += one_page[rank].kv_bytes;
    page_bytes[-1] += one_page[rank].kv_bytes;  // what all nodes take together
  }
  size_t pages = wanted;
  for (const auto& [node, bytes] : page_bytes) {
    if (bytes == 0) continue;
    // Each rank's cache begins a page of the pool.
    const uint64_t rounding = layout.places.size() * (2U << 20U);
    const uint64_t pool = room.pool_bytes(node);
    const uint64_t left =
        std::max(room.free_bytes(node) / kKvShareDivisor, pool - std::min(pool, rounding));
    pages = std::min<size_t>(pages, left / bytes);
  }
  if (!misfit && pages > 0) return pages;
  const size_t rank = misfit.value_or(0);
  const RankSizes& sizes = layout.sizes[rank];
  return machine_refused(
      "rank {} needs {} MiB for weights and {} MiB for activations on {}, where {} MiB are "
      "available; {}. Use a smaller model, more of --ranks or other --shares, or free memory",
      rank, sizes.weight_bytes >> 20U, sizes.activation_bytes() >> 20U,
      node_text(layout.places[rank].node),
      takeable_bytes(topology, layout.places[rank].node) >> 20U,
      misfit ? "they do not fit" : "nothing is left for a context");
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

std::vector<RankSizes> rank_sizes(const Model& model, const Split& split, PlanOptions options,
                                  size_t kv_pages) {
  options.kv_pages = kv_pages;
  std::vector<RankSizes> sizes;
  for (size_t rank = 0; rank < split.rank_count; ++rank) {
    const Plan plan = make_plan(model.graph, split, rank, options);
    sizes.push_back({.weight_bytes = plan.weight_bytes,
                     .kv_bytes = plan.kv.size_bytes(),
                     .scratch_bytes = plan.scratch_bytes,
                     .exchange_bytes = plan.exchange_bytes,
                     .logits_bytes = plan.logits_bytes});
  }
  return sizes;
}

Topology read_machine(const EngineOptions& options) {
  Topology topology = read_topology();
  if (may_choose_gpus(options.devices)) add_gpus(topology);
  return topology;
}

Result<ModelLayout> split_model(const Model& model, const EngineOptions& options,
                                const KernelTable& kernels, const Topology& topology) {
  const auto profile = choose_profile(options.arithmetic, kernels);
  if (!profile) return std::unexpected(profile.error());
  const auto kv_format = parse_kv_format(options.kv_format);
  if (!kv_format) return std::unexpected(kv_format.error());
  const auto strategy = parse_strategy(options.strategy);
  if (!strategy) return std::unexpected(strategy.error());
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
  ModelLayout layout;
  layout.plan_options = {
      .batch_tokens = options.batch_tokens,
      .logit_rows = std::max<size_t>(options.logit_rows == 0 ? kLeastLogitRows : options.logit_rows,
                                     options.sequence_count),
      .kv_format = *kv_format,
      .bf16_sums = options.exchange_format == "bf16",
      .forms = product_forms(*profile, kernels)};
  layout.profile = *profile;
  auto devices = find_devices(model, options, layout.plan_options, topology);
  if (!devices) return std::unexpected(devices.error());
  layout.devices = std::move(*devices);
  auto places = find_places(options, topology, layout.devices);
  if (!places) return std::unexpected(places.error());
  layout.places = std::move(*places);
  std::vector<double> shares;
  for (const RankPlace& place : layout.places) shares.push_back(place.share);
  auto split = split_graph(model.graph, shares, *strategy);
  if (!split) return std::unexpected(split.error());
  layout.split = std::move(*split);
  layout.sizes = rank_sizes(model, layout.split, layout.plan_options, 0);
  return layout;
}

std::optional<size_t> first_misfit(const ModelLayout& layout, const Topology& topology) {
  MemoryRoom room(topology, available_memory_bytes());
  return take_all(layout, room);
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
    pages = pages_for(options.context_tokens) * options.sequence_count;
    if (options.kv_pages != 0) pages = options.kv_pages;
    if (pages < pages_for(options.context_tokens)) {
      return invalid_input("kv-pages is {}, but a sequence of {} tokens takes {} pages of {}",
                           pages, options.context_tokens, pages_for(options.context_tokens),
                           kPageTokens);
    }
  } else if (layout.kv_pages_held) {
    pages = *layout.kv_pages_held;
    layout.context_tokens = std::min(model.trained_context_tokens, pages * kPageTokens);
  } else {
    const auto one_page = rank_sizes(model, layout.split, layout.plan_options, 1);
    const auto fitting = fitting_pages(
        layout, topology, one_page,
        options.kv_pages != 0 ? options.kv_pages
                              : pages_for(model.trained_context_tokens) * options.sequence_count);
    if (!fitting) return std::unexpected(fitting.error());
    pages = *fitting;
    layout.context_tokens = std::min(model.trained_context_tokens, pages * kPageTokens);
  }
  layout.plan_options.kv_pages = pages;
  layout.sizes = rank_sizes(model, layout.split, layout.plan_options, pages);
  const auto misfit = first_misfit(layout, topology);
  if (!misfit) return {};
  const RankSizes& sizes = layout.sizes[*misfit];
  const int node = layout.places[*misfit].node;
  return machine_refused(
      "rank {} needs {} MiB for weights, {} MiB for the KV cache and {} MiB for activations on {}, "
      "where ranks share {} MiB. Use a smaller model, --context or --sequences, or free memory",
      *misfit, sizes.weight_bytes >> 20U, sizes.kv_bytes >> 20U, sizes.activation_bytes() >> 20U,
      node_text(node), takeable_bytes(topology, node) >> 20U);
}

}  // namespace lockstep
