#include "engine/measure/machine_planning.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "engine/base/checked_math.h"
#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "engine/machine/arena_rules.h"
#include "engine/measure/device_report.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"
#include "engine/placement/device_places.h"
#include "engine/placement/gpu_layout.h"
#include "engine/placement/machine.h"
#include "engine/placement/memory_remedies.h"
#include "engine/placement/model_info.h"
#include "engine/placement/model_layout.h"
#include "engine/placement/model_room.h"
#include "engine/placement/placer.h"
#include "engine/placement/rank_choice.h"

namespace lockstep {
namespace {

constexpr uint64_t kMiB = 1U << 20U;

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

// The pages that `bytes` on this node would get.
std::string expected_pages(const Machine& machine, int node, uint64_t bytes) {
  const uint64_t page_bytes = pool_page_bytes(machine.topology, machine.memory.pools, node, bytes);
  if (page_bytes > 0) return fmt::format("{} MiB of the pool", page_bytes / kMiB);
  return gives_huge_pages(machine.settings) ? "transparent" : "4 KiB";
}

// What several ranks hold, over one copy of it.
void find_replicas(const Model& model, const ModelLayout& layout, MachinePlan& plan) {
  const std::vector<double> alone = {1};
  const auto whole = split_graph(model.graph, alone, Strategy::kGather);
  if (!whole) return;
  const std::set<WeightId> routers = model.graph.routers();
  const auto slices = place_all_weights(model, layout);
  std::map<std::string, uint64_t> extra;
  const Plan one = make_plan(model.graph, *whole, 0, layout.options_of(0));
  for (const WeightSlice& once : one.weights) {
    plan.model_weight_bytes += once.size_bytes;
    uint64_t held = 0;
    uint64_t elements = 0;
    for (const auto& of_rank : slices) {
      const WeightSlice& slice = of_rank[once.weight];
      held += slice.size_bytes;
      elements += (slice.row_end - slice.row_begin) * (slice.column_end - slice.column_begin);
    }
    if (held <= once.size_bytes) continue;
    const Weight& weight = model.graph.weights()[once.weight];
    const bool shared = elements > weight.rows * weight.columns;
    const char* what = !weight.is_matrix               ? "norms and biases"
                       : routers.contains(once.weight) ? "routers"
                       : shared                        ? "KV heads that ranks share"
                                                       : "rows of zeros that fill panels";
    extra[what] += held - once.size_bytes;
  }
  for (const auto& [what, bytes] : extra) plan.replicas.push_back({what, bytes});
}

void describe_ranks(const Model& model, const ModelLayout& layout, const Machine& machine,
                    MachinePlan& plan) {
  const std::vector<ReadBytes> read = bytes_per_token(model, layout);
  const Shares shares = shares_of(layout.places);
  const auto sum = [](const std::vector<double>& all) {
    return std::accumulate(all.begin(), all.end(), 0.0);
  };
  const double all_shares = sum(shares.dense);
  const double all_expert_shares = sum(shares.experts);
  // Of a mixture by kind, the layers whose experts are shared as all else.
  const size_t layers = std::max<size_t>(1, model.graph.routers().size());
  const double as_dense =
      static_cast<double>(layout.gpu_expert_layers) / static_cast<double>(layers);
  for (size_t rank = 0; rank < layout.places.size(); ++rank) {
    const RankPlace& place = layout.places[rank];
    const RankSizes& sizes = layout.sizes[rank];
    plan.ranks.push_back(
        {.node = place.node,
         .gpu = place.gpu,
         .cpus = place.cpus,
         .share = place.share / all_shares,
         .expert_share = as_dense * place.share / all_shares +
                         (1 - as_dense) * shares.experts[rank] / all_expert_shares,
         .weight_bytes = sizes.weight_bytes,
         .kv_bytes = sizes.kv_bytes,
         .scratch_bytes = sizes.activation_bytes() - sizes.hosted_bytes(),
         .other_needs = other_needs(layout, rank),
         .pages = place.gpu ? "the GPU's" : expected_pages(machine, place.node, sizes.weight_bytes),
         .available_bytes = takeable_bytes(machine, place),
         .read_bytes = read[rank].all,
         .read_expert_bytes = read[rank].experts});
  }
}

// The slowest rank of each kind of weights. Where GPUs and nodes have experts, layers are either's.
double read_seconds(const MachinePlan& plan) {
  double dense = 0;
  double node_experts = 0;
  double gpu_experts = 0;
  for (const MachinePlan::Rank& rank : plan.ranks) {
    const auto of_experts = static_cast<double>(rank.read_expert_bytes);
    const double expert_seconds = of_experts / rank.bytes_per_second;
    dense = std::max(dense, rank.seconds_per_token - expert_seconds);
    double& experts = rank.gpu ? gpu_experts : node_experts;
    experts = std::max(experts, expert_seconds);
  }
  return dense + node_experts + gpu_experts;
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

// What they exchange is not known.
Result<void> estimate_gpu_speed(const Machine& machine, const ModelLayout& layout,
                                MachinePlan& plan) {
  std::vector<RankPlace> nodes;
  for (const RankPlace& place : layout.places) {
    if (!place.gpu) nodes.push_back(place);
  }
  std::vector<double> measured;
  if (!nodes.empty()) {
    auto bandwidths = machine.meter.read(nodes);
    if (!bandwidths) return std::unexpected(bandwidths.error());
    measured = std::move(*bandwidths);
  }
  const GpuSpeeds speeds = speeds_of_gpus(machine, layout);
  std::vector<std::string> silent;
  size_t node = 0;
  for (MachinePlan::Rank& rank : plan.ranks) {
    rank.measured = !rank.gpu || speeds.measured;
    rank.bytes_per_second = rank.gpu ? speeds.bytes_per_second.at(*rank.gpu) : measured[node++];
    if (rank.bytes_per_second == 0) {
      silent.push_back(fmt::format("gpu{}", *rank.gpu));
      continue;
    }
    rank.seconds_per_token = static_cast<double>(rank.read_bytes) / rank.bytes_per_second;
  }
  if (!silent.empty()) {
    plan.verdict =
        fmt::format("how fast the memory of {} is, is not known", fmt::join(silent, ", "));
    return {};
  }
  plan.read_seconds = read_seconds(plan);
  plan.tokens_per_second = 1 / plan.read_seconds;
  if (plan.ranks.size() == 1) plan.one_rank_tokens_per_second = plan.tokens_per_second;
  plan.verdict = gpu_verdict(speeds);
  return {};
}

// Of ranks that are nodes'.
void take_over(const NodeSpeed& speed, MachinePlan& plan) {
  for (size_t index = 0; index < plan.ranks.size(); ++index) {
    MachinePlan::Rank& rank = plan.ranks[index];
    rank.measured = true;
    rank.bytes_per_second = speed.bytes_per_second[index];
    rank.seconds_per_token = static_cast<double>(rank.read_bytes) / rank.bytes_per_second;
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

Result<void> estimate_speed(const Model& model, const Machine& machine, const RankChoice& choice,
                            MachinePlan& plan) {
  const auto& [settings, layout, reason, measured] = choice;
  if (layout.on_gpus()) return estimate_gpu_speed(machine, layout, plan);
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

void describe_faults(const ModelLayout& layout, const Machine& machine, MachinePlan& plan) {
  MachineWishes wishes;
  for (size_t rank = 0; rank < layout.places.size(); ++rank) {
    const int node = layout.places[rank].node;
    wishes.mapped_bytes += layout.sizes[rank].host_bytes();
    if (layout.sizes[rank].on_gpu) continue;
    // Pools that someone has set aside are meant for this; without any, transparent pages will do.
    const Node* found = machine.topology.find_node(std::max(node, 0));
    if (found == nullptr) continue;
    const uint64_t bytes = layout.sizes[rank].weight_bytes;
    const bool worth_giant = deserves_giga_pages(bytes, round_up<uint64_t>(bytes, kGigaPageBytes));
    for (const HugePagePool& pool : found->pools) {
      const bool is_of_use =
          pool.page_bytes == kHugePageBytes || (pool.page_bytes == kGigaPageBytes && worth_giant);
      if (pool.total_pages == 0 || !is_of_use) continue;
      wishes.huge_pages.push_back(
          {.node = found->id, .page_bytes = pool.page_bytes, .bytes = bytes});
      break;
    }
  }
  for (MachineFault& fault : find_machine_faults(machine.topology, machine.settings, wishes)) {
    plan.faults.push_back({std::move(fault.sentence), std::move(fault.command)});
  }
}

// Lays the model out; chooses the number of ranks by what is measured, if that
// is wanted.
Result<RankChoice> choose_layout(const Model& model, const Settings& settings,
                                 const Machine& machine, bool measure) {
  auto layout = Placer(model, settings, machine).place();
  if (!layout) return std::unexpected(layout.error());
  if (measure) return choose_ranks(model, settings, machine, std::move(*layout));
  return RankChoice{.settings = settings, .layout = std::move(*layout), .reason = {}};
}

MachinePlan describe_plan(const Model& model, const EngineOptions& options, const ModelInfo& info,
                          const Machine& machine, RankChoice& choice) {
  ModelLayout& layout = choice.layout;
  MachinePlan plan;
  plan.model = info.name;
  plan.architecture = info.architecture;
  plan.format = info.format;
  plan.strategy = strategy_name(layout.split.strategy);
  plan.instruction_set = info.instruction_set;
  plan.arithmetic = info.arithmetic;
  plan.sequence_count = static_cast<uint32_t>(choice.settings.sequence_count);
  plan.nodes = describe_nodes(machine.topology);
  describe_devices(machine.topology, layout.devices, plan);
  if (auto sized = size_context(model, choice.settings, machine, layout); !sized) {
    plan.fits = false;
    plan.misfit =
        with_memory_remedies(sized.error(), model, with_ranks_of(choice.settings, options),
                             *choice.settings.kernels, machine, layout)
            .message;
  }
  plan.context_tokens = static_cast<uint32_t>(layout.context_tokens);
  describe_ranks(model, layout, machine, plan);
  find_replicas(model, layout, plan);
  describe_faults(layout, machine, plan);
  return plan;
}

}  // namespace

Result<MachinePlan> plan_machine(const EngineOptions& options, bool measure) {
  return plan_machine(options, Machine::read(/*with_gpus=*/true), measure);
}

Result<MachinePlan> plan_machine(const EngineOptions& options, const Machine& machine,
                                 bool measure) {
  const auto kernels = choose_kernel_table(options.instruction_set);
  if (!kernels) return std::unexpected(kernels.error());
  const auto file = GgufFile::open(options.model);
  if (!file) return std::unexpected(file.error());
  const auto model = build_model({.file = *file, .context_tokens = options.context_tokens});
  if (!model) return std::unexpected(model.error());
  const auto settings = parse(options, **kernels, machine);
  if (!settings) return std::unexpected(settings.error());
  auto choice = choose_layout(*model, *settings, machine, measure);
  if (!choice) return std::unexpected(choice.error());
  const ModelInfo info = describe_model(*file, *model, options, choice->layout);
  MachinePlan plan = describe_plan(*model, options, info, machine, *choice);
  if (!measure) {
    plan.verdict = "not measured";
    return plan;
  }
  if (auto estimated = estimate_speed(*model, machine, *choice, plan); !estimated) {
    return std::unexpected(estimated.error());
  }
  return plan;
}

}  // namespace lockstep
