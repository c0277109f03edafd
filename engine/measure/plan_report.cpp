#include "engine/measure/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "engine/base/checked_math.h"
#include "engine/machine/arena_rules.h"
#include "engine/placement/device_rules.h"
#include "engine/placement/layout_speed.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/model_layout.h"

namespace lockstep {
namespace {

std::vector<MachinePlan::Node> describe_nodes(const Topology& topology) {
  std::vector<MachinePlan::Node> nodes;
  for (const Node& node : topology.nodes) {
    MachinePlan::Node described{.id = node.id,
                                .memory_bytes = node.memory_bytes,
                                .free_bytes = node.free_bytes,
                                .memory_allowed = node.memory_allowed,
                                .distances = node.distances,
                                .huge_pages = {}};
    std::set<std::pair<int, int>> cores;
    for (const Cpu& cpu : topology.cpus) {
      if (cpu.node != node.id) continue;
      ++described.cpu_count;
      cores.emplace(cpu.package, cpu.core);
    }
    described.core_count = static_cast<uint32_t>(cores.size());
    for (const HugePagePool& pool : node.pools) {
      described.huge_pages.push_back({pool.page_bytes, pool.total_pages, pool.free_pages});
    }
    nodes.push_back(std::move(described));
  }
  return nodes;
}

// The bytes that several ranks hold of a weight, over one copy of it, are of one of these kinds.
std::string_view replica_name(const Split& split, const Weight& weight, bool is_router,
                              bool is_shared) {
  if (split.is_by_layers()) return "weights of several ranks' layers";
  if (!weight.is_matrix) return "norms and biases";
  if (is_router) return "routers";
  return is_shared ? "KV heads that ranks share" : "rows of zeros that fill panels";
}

// Gpu::index of the one that computes; none: processors do.
std::optional<int> gpu_index(const RankPlace& place) {
  const auto* const gpu = std::get_if<GpuPlace>(&place.device);
  return gpu == nullptr ? std::nullopt : std::optional(gpu->index);
}

// Pools that someone has set aside are meant for the weights; without any, transparent pages will
// do.
void request_pool(const Node& node, uint64_t bytes, MachineHints& hints) {
  const bool worth_giant = deserves_giga_pages(bytes, round_up<uint64_t>(bytes, kGigaPageBytes));
  for (const HugePagePool& pool : node.pools) {
    const bool is_of_use =
        pool.page_bytes == kHugePageBytes || (pool.page_bytes == kGigaPageBytes && worth_giant);
    if (pool.total_pages == 0 || !is_of_use) continue;
    hints.huge_pages.push_back({.node = node.id, .page_bytes = pool.page_bytes, .bytes = bytes});
    return;
  }
}

double sum(const std::vector<double>& all) {
  return std::accumulate(all.begin(), all.end(), 0.0);
}

// Writes the parts of a plan, each in one function.
class PlanReport {
 public:
  PlanReport(const Model& model, const Machine& machine, const RankChoice& choice)
      : model_(model), machine_(machine), choice_(choice), layout_(choice.layout) {}

  MachinePlan write(const ModelInfo& info, const std::string& misfit) {
    plan_.model = info.name;
    plan_.architecture = info.architecture;
    plan_.format = info.format;
    plan_.strategy = strategy_name(layout_.split.strategy);
    plan_.instruction_set = info.instruction_set;
    plan_.arithmetic = info.arithmetic;
    plan_.sequence_count = static_cast<uint32_t>(choice_.settings.sequence_count);
    plan_.context_tokens = static_cast<uint32_t>(layout_.context_tokens);
    describe_states();
    plan_.fits = misfit.empty();
    plan_.misfit = misfit;
    plan_.nodes = describe_nodes(machine_.topology);
    describe_devices(machine_.topology, layout_.devices, plan_);
    describe_ranks();
    describe_draft();
    describe_replicas();
    describe_encoded();
    describe_faults();
    return std::move(plan_);
  }

 private:
  void describe_states() {
    if (!model_.graph.has_states()) return;
    const PlanOptions& options = layout_.plan_options;
    plan_.state_slots = static_cast<uint32_t>(options.state_slots);
    double state_bytes = 0;
    double kv_bytes = 0;
    for (const RankSizes& sizes : layout_.sizes) {
      state_bytes += static_cast<double>(sizes.state_bytes);
      kv_bytes += static_cast<double>(sizes.kv_bytes);
    }
    if (kv_bytes == 0) return;
    plan_.state_slot_pages = state_bytes / static_cast<double>(options.state_slots) /
                             (kv_bytes / static_cast<double>(options.kv_pages));
  }

  void describe_draft() {
    if (!layout_.draft) return;
    plan_.draft = MachinePlan::Draft{.architecture = layout_.draft->model->architecture};
    for (const RankSizes& sizes : layout_.draft->sizes) {
      plan_.draft->ranks.push_back(
          {.weight_bytes = sizes.weight_bytes,
           .kv_bytes = sizes.kv_bytes,
           .scratch_bytes = sizes.activation_bytes() - sizes.hosted_bytes()});
    }
  }

  void describe_ranks() {
    const std::vector<ReadBytes> read = bytes_per_token(model_, layout_);
    const Shares shares = shares_of(layout_.places);
    const double all_shares = sum(shares.dense);
    const double all_expert_shares = sum(shares.experts);
    // The layers of a mixture by kind whose experts are shared as all else.
    const size_t layers = std::max<size_t>(1, model_.graph.routers().size());
    const double as_dense =
        static_cast<double>(layout_.gpu_expert_layers) / static_cast<double>(layers);
    for (size_t rank = 0; rank < layout_.places.size(); ++rank) {
      const RankPlace& place = layout_.places[rank];
      const RankSizes& sizes = layout_.sizes[rank];
      const RankDevice& device = device_of(place);
      plan_.ranks.push_back(
          {.node = place.node,
           .gpu = gpu_index(place),
           .cpus = place.cpus,
           .share = place.share / all_shares,
           .expert_share = as_dense * place.share / all_shares +
                           (1 - as_dense) * shares.experts[rank] / all_expert_shares,
           .weight_bytes = sizes.weight_bytes,
           .kv_bytes = sizes.kv_bytes,
           .scratch_bytes = sizes.activation_bytes() - sizes.hosted_bytes(),
           .state_bytes = sizes.state_bytes,
           .other_needs = other_needs(layout_, rank),
           .pages = device.page_text(machine_, place, sizes.weight_bytes),
           .available_bytes = device.takeable_bytes(machine_, place),
           .read_bytes = read[rank].all,
           .read_expert_bytes = read[rank].experts});
    }
  }

  void describe_replicas() {
    const std::vector<double> alone = {1};
    const auto whole = split_graph(model_.graph, alone, Strategy::kGather);
    if (!whole) return;
    const std::set<WeightId> routers = model_.graph.routers();
    const auto slices = place_all_weights(model_, layout_);
    std::map<std::string, uint64_t> extra;
    const Plan one = make_plan(model_.graph, *whole, 0, layout_.options_of(0));
    for (const WeightSlice& once : one.weights) {
      plan_.model_weight_bytes += once.size_bytes;
      uint64_t held = 0;
      uint64_t elements = 0;
      for (const auto& of_rank : slices) {
        const WeightSlice& slice = of_rank[once.weight];
        held += slice.size_bytes;
        elements += (slice.row_end - slice.row_begin) * (slice.column_end - slice.column_begin);
      }
      if (held <= once.size_bytes) continue;
      const Weight& weight = model_.graph.weights()[once.weight];
      const auto name = replica_name(layout_.split, weight, routers.contains(once.weight),
                                     elements > weight.rows * weight.columns);
      extra[std::string(name)] += held - once.size_bytes;
    }
    for (const auto& [what, bytes] : extra) plan_.replicas.push_back({what, bytes});
  }

  // Formats that are packed as the file has them are not named.
  void describe_encoded() {
    std::map<Format, MachinePlan::Encoded> encoded;
    for (const Weight& weight : model_.graph.weights()) {
      if (!weight.is_matrix) continue;
      const uint64_t file_bytes = weight.rows * row_bytes(weight.format, weight.columns);
      const uint64_t memory_bytes = weight.rows * packed_row_bytes(weight.format, weight.columns);
      if (memory_bytes == file_bytes) continue;
      MachinePlan::Encoded& entry = encoded[weight.format];
      entry.format = traits(weight.format).name;
      entry.file_bytes += file_bytes;
      entry.memory_bytes += memory_bytes;
    }
    for (const auto& [format, entry] : encoded) plan_.encoded.push_back(entry);
  }

  void describe_faults() {
    MachineHints hints;
    for (size_t rank = 0; rank < layout_.places.size(); ++rank) {
      const RankPlace& place = layout_.places[rank];
      hints.mapped_bytes += layout_.sizes[rank].host_bytes();
      if (layout_.draft) hints.mapped_bytes += layout_.draft->sizes[rank].host_bytes();
      const Node* const node = machine_.topology.find_node(std::max(place.node, 0));
      if (node == nullptr) continue;
      for (const HostArena& arena : device_of(place).host_arenas(layout_.sizes[rank])) {
        if (arena.use == HostArena::Use::kWeights) request_pool(*node, arena.bytes, hints);
      }
    }
    for (MachineFault& fault : find_machine_faults(machine_.topology, machine_.settings, hints)) {
      plan_.faults.push_back({std::move(fault.sentence), std::move(fault.command)});
    }
  }

  const Model& model_;
  const Machine& machine_;
  const RankChoice& choice_;
  const ModelLayout& layout_;
  MachinePlan plan_;
};

}  // namespace

MachinePlan describe_plan(const Model& model, const ModelInfo& info, const Machine& machine,
                          const RankChoice& choice, const std::string& misfit) {
  return PlanReport(model, machine, choice).write(info, misfit);
}

void describe_devices(const Topology& topology, const DeviceChoice& choice, MachinePlan& plan) {
  for (const Gpu& gpu : topology.gpus) {
    MachinePlan::Gpu described{
        .index = gpu.index,
        .name = gpu.name,
        .uuid = gpu.uuid,
        .pci_address = gpu.pci_address,
        .node = gpu.node,
        .memory_bytes = gpu.memory_bytes,
        .free_bytes = gpu.free_bytes,
        .compute_capability = fmt::format("{}.{}", gpu.capability_major, gpu.capability_minor),
        .multiprocessor_count = static_cast<uint32_t>(gpu.multiprocessor_count),
        .bytes_per_second = gpu.bytes_per_second,
        .links = {}};
    for (size_t other = 0; other < gpu.links.size(); ++other) {
      if (gpu.links[other] == GpuLink::kSelf) continue;
      described.links.push_back(
          {topology.gpus[other].index, std::string(link_name(gpu.links[other]))});
    }
    plan.gpus.push_back(std::move(described));
  }
  plan.no_gpus = topology.gpus.empty() ? topology.no_gpus : "";
  plan.devices = {.nodes = choice.nodes,
                  .gpus = choice.gpus,
                  .names = device_names(choice),
                  .reason = choice.reason,
                  .idle = idle_sentences(choice)};
}

}  // namespace lockstep
