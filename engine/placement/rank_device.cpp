#include "engine/placement/rank_device.h"

#include <algorithm>

#include "engine/collectives/gpu_all_reduce.h"
#include "engine/machine/arena_rules.h"
#include "engine/machine/device_choice.h"
#include "engine/model/weight_loader.h"
#include "engine/runtime/gpu/gpu_executor.h"
#include "engine/runtime/gpu/gpu_program.h"

namespace lockstep {
namespace {

RankSizes arenas_of(const Plan& plan) {
  RankSizes sizes;
  sizes.weight_bytes = plan.weight_bytes;
  sizes.kv_bytes = plan.kv.size_bytes();
  sizes.scratch_bytes = plan.scratch_bytes;
  sizes.state_bytes = plan.states.size_bytes();
  sizes.exchange_bytes = plan.exchange_bytes;
  sizes.logits_bytes = plan.logits_bytes;
  return sizes;
}

// The memory for the rows that another rank's GPU hands over to this one's.
uint64_t taken_bytes(const Plan& plan) {
  for (const Step& step : plan.steps) {
    const auto* const hand_over = std::get_if<HandOverStep>(&step.work);
    if (hand_over == nullptr || hand_over->taker != plan.rank) continue;
    return handed_slots(plan) * handed_bytes(plan, *hand_over);
  }
  return 0;
}

// Adds what a rank with layers of its own takes beside its arenas.
void add_layers(const Plan& plan, bool gpus_linked, RankSizes& own) {
  const GpuResultBytes results = gpu_result_bytes(plan);
  own.layer_bytes = results.logits + results.hidden;
  own.candidate_bytes += results.candidates;
  (gpus_linked ? own.layer_bytes : own.handed_bytes) += taken_bytes(plan);
}

class NodeDevice final : public RankDevice {
 public:
  std::string memory_name(const RankPlace& place) const override {
    return place.node < 0 ? "this machine" : fmt::format("node {}", place.node);
  }

  RankSizes sizes(const Graph& /*graph*/, const Plan& plan,
                  const RankCompany& /*company*/) const override {
    return arenas_of(plan);
  }

  std::vector<HostArena> host_arenas(const RankSizes& sizes) const override {
    return {{sizes.weight_bytes, "weights", HostArena::Use::kWeights},
            {sizes.scratch_bytes, "activations"},
            {sizes.exchange_bytes, "activations"},
            {sizes.kv_bytes, "the KV cache", HostArena::Use::kKvCache},
            {sizes.logits_bytes, "logits"},
            {sizes.host_buffer_bytes, "exchanges with other hosts"}};
  }

  bool take_gpu_memory(const RankPlace& /*place*/, const RankSizes& /*sizes*/,
                       GpuBudget& /*gpus*/) const override {
    return true;
  }

  uint64_t takeable_bytes(const Machine& machine, const RankPlace& place) const override {
    return lockstep::takeable_bytes(machine, place.node);
  }

  std::string page_text(const Machine& machine, const RankPlace& place,
                        uint64_t bytes) const override {
    const uint64_t page_bytes =
        pool_page_bytes(machine.topology, machine.memory.pools, place.node, bytes);
    if (page_bytes > 0) return fmt::format("{} MiB of the pool", page_bytes >> 20U);
    return gives_huge_pages(machine.settings) ? "transparent" : "4 KiB";
  }
};

class GpuRankDevice final : public RankDevice {
 public:
  std::string memory_name(const RankPlace& place) const override {
    return fmt::format("gpu{}", index_of(place));
  }

  // Beside nodes passes are not recorded, and sums are the host's.
  RankSizes sizes(const Graph& graph, const Plan& plan, const RankCompany& company) const override {
    RankSizes own = arenas_of(plan);
    own.own_is_hosts = false;
    own.exchange_is_hosts = company.has_nodes;
    own.logits_are_hosts =
        company.has_nodes || !(company.gpus_linked || company.by_layers || company.among_hosts);
    own.staging_bytes = gpu_staging_bytes_max(graph);
    own.handed_bytes = gpu_given_bytes(plan);
    if (!own.logits_are_hosts) {
      own.candidate_bytes = kGpuPassesAtOnce * std::get<GpuAreas>(plan.areas).candidate_bytes;
    }
    if (company.has_nodes) return own;
    own.recording_bytes = recording_bytes(plan);
    own.message_floats = exchanged_floats_max(plan);
    if (company.by_layers) {
      add_layers(plan, company.gpus_linked, own);
    } else if (company.rank_count > 1 && company.gpus_linked && !company.among_hosts) {
      own.mailbox_bytes = gpu_mailbox_bytes(company.rank_count, GpuPeers().channel_count);
    }
    return own;
  }

  std::vector<HostArena> host_arenas(const RankSizes& sizes) const override {
    return {{sizes.candidate_bytes, "candidates"},
            {sizes.hosted_bytes() + sizes.handed_bytes, "activations"}};
  }

  bool take_gpu_memory(const RankPlace& place, const RankSizes& sizes,
                       GpuBudget& gpus) const override {
    return gpus.take(index_of(place), sizes.own_bytes());
  }

  uint64_t takeable_bytes(const Machine& machine, const RankPlace& place) const override {
    return usable_bytes(gpu_at(machine.topology, index_of(place)));
  }

  std::string page_text(const Machine& /*machine*/, const RankPlace& /*place*/,
                        uint64_t /*bytes*/) const override {
    return "the GPU's";
  }

 private:
  static int index_of(const RankPlace& place) { return std::get<GpuPlace>(place.device).index; }
};

struct DeviceFactory {
  const RankDevice& operator()(const NodePlace& /*place*/) const {
    static const NodeDevice device;
    return device;
  }
  const RankDevice& operator()(const GpuPlace& /*place*/) const {
    static const GpuRankDevice device;
    return device;
  }
};

}  // namespace

const RankDevice& device_of(const RankPlace& place) {
  return std::visit(DeviceFactory(), place.device);
}

uint64_t takeable_bytes(const Machine& machine, int node) {
  const Topology& topology = machine.topology;
  const MemoryLimits& limits = machine.memory;
  uint64_t free_bytes = 0;
  for (const Node& each : topology.nodes) {
    if (node < 0 || each.id == node) free_bytes += each.free_bytes;
  }
  const bool whole_machine = node < 0 || topology.nodes.size() == 1;
  const uint64_t available = limits.available_bytes;
  return (whole_machine ? available : std::min(available, free_bytes)) +
         free_pool_bytes(topology, limits.pools, node, kHugePageBytes) +
         free_pool_bytes(topology, limits.pools, node, kGigaPageBytes);
}

std::vector<RankSizes> rank_sizes(const Model& model, const Split& split, PlanOptions options,
                                  size_t kv_pages, std::span<const RankPlace> places,
                                  bool gpus_linked, size_t first_rank) {
  const RankCompany company = {
      .rank_count = places.size(),
      .has_nodes = std::ranges::any_of(
          places,
          [](const RankPlace& place) { return std::holds_alternative<NodePlace>(place.device); }),
      .gpus_linked = gpus_linked,
      .by_layers = split.is_by_layers(),
      .among_hosts = split.rank_count > places.size()};
  options.kv_pages = kv_pages;
  std::vector<RankSizes> sizes;
  for (const RankPlace& place : places) {
    // As Ranks::make_among_hosts().
    const bool has_logits = sizes.empty() || (company.among_hosts && !company.has_nodes);
    const auto make = has_logits ? make_first_plan : make_plan;
    const Plan plan =
        make(model.graph, split, first_rank + sizes.size(), options_on(place, options));
    sizes.push_back(device_of(place).sizes(model.graph, plan, company));
  }
  return sizes;
}

}  // namespace lockstep
