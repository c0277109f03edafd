#include "engine/placement/expert_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/gpu_experts.h"
#include "engine/placement/device_rules.h"
#include "engine/placement/gpu_traits.h"
#include "engine/placement/memory_fit.h"

namespace lockstep {
namespace {

// The draft model is split as the model is: anew, where the places' shares have changed.
Result<void> place_draft(const Settings& settings, const Machine& machine, ModelLayout& layout) {
  if (settings.draft_model == nullptr) return {};
  auto draft = lay_out_draft(settings, machine, layout.as_places(), Strategy::kReduce);
  if (!draft) return std::unexpected(draft.error());
  layout.draft = std::move(*draft);
  return {};
}

// The split with so many layers' experts on the GPUs.
Result<Split> split_with(const Model& model, const ModelLayout& layout, size_t gpu_layers) {
  Shares shares = shares_of(layout.places);
  shares.apart_layers = model.graph.routers().size() - gpu_layers;
  return split_graph(model.graph, shares, Strategy::kReduce);
}

// Tries numbers of layers before one is chosen.
class Trial {
 public:
  Trial(const Model& model, const ModelLayout& layout, const Machine& machine)
      : model_(model), layout_(layout), machine_(machine) {}

  Result<std::vector<RankSizes>> sizes(size_t gpu_layers, size_t pages) const {
    const auto split = split_with(model_, layout_, gpu_layers);
    if (!split) return std::unexpected(split.error());
    return rank_sizes(model_, *split, layout_.plan_options, pages, layout_.places,
                      layout_.gpus_linked);
  }

  bool has_space(size_t gpu_layers, size_t pages) const {
    const auto tried = sizes(gpu_layers, pages);
    if (!tried) return false;
    GpuBudget space(machine_.topology);
    const auto draft = layout_.draft_sizes_with(pages);
    for (size_t rank = 0; rank < layout_.places.size(); ++rank) {
      const RankPlace& place = layout_.places[rank];
      const RankDevice& device = device_of(place);
      if (!device.take_gpu_memory(place, (*tried)[rank], space)) return false;
      if (!draft.empty() && !device.take_gpu_memory(place, draft[rank], space)) return false;
    }
    return true;
  }

  // The pages of the cache, up to those wanted, for which half of what the GPUs have left without
  // any experts is enough.
  Result<size_t> half_the_space(size_t wanted) const {
    const auto without = sizes(0, 0);
    if (!without) return std::unexpected(without.error());
    const auto with_one = sizes(0, 1);
    if (!with_one) return std::unexpected(with_one.error());
    const auto draft = layout_.draft_sizes_with(0);
    const auto draft_with_one = layout_.draft_sizes_with(1);
    size_t pages = wanted;
    for (size_t rank = 0; rank < layout_.gpu_places().size(); ++rank) {
      const RankPlace& place = layout_.places[rank];
      uint64_t page = (*with_one)[rank].kv_bytes;
      uint64_t taken = (*without)[rank].own_bytes();
      if (!draft.empty()) {
        page += draft_with_one[rank].kv_bytes - draft[rank].kv_bytes;
        taken += draft[rank].own_bytes();
      }
      if (page == 0) continue;
      const uint64_t usable = device_of(place).takeable_bytes(machine_, place);
      const uint64_t left = usable - std::min(usable, taken);
      pages = std::min<size_t>(pages, left / 2 / page);
    }
    return pages;
  }

 private:
  const Model& model_;
  const ModelLayout& layout_;
  const Machine& machine_;
};

// Whether the GPUs together read faster than the nodes. Where somebody has said how they share,
// nothing is measured: GPUs that were chosen are taken to be faster.
Result<bool> gpus_are_faster(const Machine& machine, const ModelLayout& layout) {
  if (!layout.gpu_speeds) return true;
  double gpu_bandwidth = 0;
  for (const auto& [gpu, speed] : layout.gpu_speeds->bytes_per_second) gpu_bandwidth += speed;
  const auto measured = machine.meter.read_speeds(layout.node_places());
  if (!measured) return std::unexpected(measured.error());
  return gpu_bandwidth > std::accumulate(measured->begin(), measured->end(), 0.0);
}

// The shares of GPUs and nodes become those of experts on the nodes, and of all else on the GPUs.
void share_by_kind(ModelLayout& layout) {
  const size_t gpu_count = layout.gpu_places().size();
  for (size_t rank = 0; rank < layout.places.size(); ++rank) {
    RankPlace& place = layout.places[rank];
    place.expert_share = rank < gpu_count ? 0 : place.share;
    if (rank >= gpu_count) place.share = 0;
  }
}

// Pages for the shortest context that a default leaves, or for what is asked for.
size_t least_pages(const Model& model, const Settings& settings, const ModelLayout& layout) {
  const size_t context = settings.context_or(model.trained_context_tokens);
  const KvPageCount count(model.graph, layout.plan_options.batch_tokens);
  if (settings.context_tokens != 0) return wanted_pages(settings, count, context);
  return count.of_sequence(std::min(context, kLeastAutomaticContext));
}

// Whether the nodes get a part of what is no expert: the GPUs have no space for it. By bandwidth,
// as far as shares follow that; shares that were given stay the GPUs'.
Result<bool> share_all_else(const Model& model, const Settings& settings, const Machine& machine,
                            ModelLayout& layout) {
  if (!layout.gpu_speeds) return false;
  const Trial trial(model, layout, machine);
  const size_t pages = least_pages(model, settings, layout);
  if (trial.has_space(0, pages)) return false;
  const auto sizes = trial.sizes(0, pages);
  if (!sizes) return std::unexpected(sizes.error());
  const size_t gpu_count = layout.gpu_places().size();
  const auto draft = layout.draft_sizes_with(pages);
  GpuNeeds needs;
  for (size_t rank = 0; rank < gpu_count; ++rank) {
    const GpuNeeds own = (*sizes)[rank].gpu_needs();
    const GpuNeeds drafts = draft.empty() ? GpuNeeds() : draft[rank].gpu_needs();
    needs.shared_bytes += own.shared_bytes + drafts.shared_bytes;
    needs.each_bytes = std::max(needs.each_bytes, own.each_bytes + drafts.each_bytes);
  }
  const std::span<RankPlace> places(layout.places);
  auto shared = share_by_bandwidth(machine, layout.devices, *layout.gpu_speeds, needs,
                                   places.first(gpu_count), places.subspan(gpu_count));
  if (!shared) return std::unexpected(shared.error());
  return true;
}

struct Choice {
  size_t gpu_layers = 0;
  std::string why_no_more;
};

Result<Choice> choose_layers(const Model& model, const Settings& settings, const Machine& machine,
                             const ModelLayout& layout) {
  const size_t chosen = model.graph.chosen_experts();
  if (chosen > kGpuChosenMax) {
    return Choice{0, fmt::format("a token goes to {} of them, and a GPU computes up to {}", chosen,
                                 kGpuChosenMax)};
  }
  const Trial trial(model, layout, machine);
  const size_t context = settings.context_or(model.trained_context_tokens);
  const KvPageCount count(model.graph, layout.plan_options.batch_tokens);
  size_t pages = wanted_pages(settings, count, context);
  if (settings.context_tokens == 0 && settings.kv_pages == 0) {
    const auto half = trial.half_the_space(pages);
    if (!half) return std::unexpected(half.error());
    const size_t least = count.of_sequence(std::min(context, kLeastAutomaticContext));
    pages = std::min(pages, std::max(*half, least));
  }
  // The nodes keep one layer's: they are ranks because somebody has asked for them.
  Choice choice{0, "for more the GPUs have no space beside a context of " +
                       std::to_string(std::min(context, count.tokens_within(pages))) + " tokens"};
  size_t too_many = model.graph.routers().size();
  while (choice.gpu_layers + 1 < too_many) {
    const size_t tried = choice.gpu_layers + (too_many - choice.gpu_layers) / 2;
    (trial.has_space(tried, pages) ? choice.gpu_layers : too_many) = tried;
  }
  if (choice.gpu_layers == 0) return choice;
  const auto faster = gpus_are_faster(machine, layout);
  if (!faster) return std::unexpected(faster.error());
  if (!*faster) return Choice{0, "the nodes read their memory faster than the GPUs do theirs"};
  return choice;
}

}  // namespace

Result<void> check_expert_layers(const Graph& graph, const Settings& settings, bool mixed) {
  if (settings.gpu_expert_layers.value_or(0) == 0) return {};
  const size_t asked = *settings.gpu_expert_layers;
  const size_t layers = graph.routers().size();
  if (layers == 0) {
    return invalid_input(
        "gpu-expert-layers is {}, but this model is no mixture of experts: leave it out", asked);
  }
  if (graph.chosen_experts() > kGpuChosenMax) {
    return invalid_input(
        "gpu-expert-layers is {}, but in this model a token goes to {} experts, and a GPU computes "
        "up to {}: leave it out",
        asked, graph.chosen_experts(), kGpuChosenMax);
  }
  if (!check_gpu_graph(graph, settings.without_fusion, GpuCompany::kNodes)) {
    return invalid_input(
        "gpu-expert-layers is {}, but a GPU does not compute this model: leave it out", asked);
  }
  if (!mixed) {
    return invalid_input(
        "gpu-expert-layers is {}, which is for GPUs and nodes as ranks of one split: use --devices "
        "all and up to {}, or leave it out",
        asked, layers - 1);
  }
  if (asked >= layers) {
    return invalid_input(
        "gpu-expert-layers is {}, but of the {} layers with experts one at least is the nodes': "
        "use up to {}, or leave it out (with --devices gpu the GPUs have all layers)",
        asked, layers, layers - 1);
  }
  return {};
}

Result<void> place_experts(const Model& model, const Settings& settings, const Machine& machine,
                           ModelLayout& layout) {
  share_by_kind(layout);
  if (auto placed = place_draft(settings, machine, layout); !placed) return placed;
  Choice choice;
  bool shares_all_else = false;
  if (settings.gpu_expert_layers) {
    choice = {*settings.gpu_expert_layers, "as asked for"};
  } else {
    const auto shared = share_all_else(model, settings, machine, layout);
    if (!shared) return std::unexpected(shared.error());
    shares_all_else = *shared;
    if (auto placed = place_draft(settings, machine, layout); !placed) return placed;
  }
  if (!settings.gpu_expert_layers && !shares_all_else) {
    auto chosen = choose_layers(model, settings, machine, layout);
    if (!chosen) return std::unexpected(chosen.error());
    choice = std::move(*chosen);
  }
  auto split = split_with(model, layout, choice.gpu_layers);
  if (!split) return std::unexpected(split.error());
  layout.split = std::move(*split);
  layout.gpu_expert_layers = choice.gpu_layers;
  const size_t layers = model.graph.routers().size();
  if (shares_all_else) {
    layout.devices.reason +=
        "; the nodes have the experts, of which a token reads few, and the part of all else for "
        "which the GPUs have no space";
    return {};
  }
  layout.devices.reason +=
      choice.gpu_layers == 0
          ? fmt::format(
                "; the nodes have the experts, of which a token reads few, and the GPUs "
                "all else: {}",
                choice.why_no_more)
          : fmt::format(
                "; the nodes have the experts of the first {} of {} layers, and the GPUs "
                "all else: {}",
                layers - choice.gpu_layers, layers, choice.why_no_more);
  return {};
}

}  // namespace lockstep
