#include "engine/placement/layer_placement.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "engine/kernels/attention.h"
#include "engine/placement/device_rules.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/rank_device.h"
#include "engine/planner/layer_split.h"
#include "engine/planner/split_graph.h"

namespace lockstep {
namespace {

// The bytes that a split takes are known once it is planned: some of those beside weights and cache
// depend on it a little. They settle after a few rounds.
constexpr int kRounds = 8;

// The bytes that so many pages of keys and values take, by part. A page has those of one group of
// layers, and groups are about as large as one another.
void add_cache(const Model& model, const ModelLayout& layout, std::span<const LayerBorder> borders,
               size_t pages, std::vector<uint64_t>& parts) {
  const KvFormats& format = layout.plan_options.kv_format;
  size_t part = 0;
  for (const GraphNode& node : model.graph.nodes()) {
    if (part < borders.size() && borders[part].node == node.output) ++part;
    if (node.operation != Operation::kAttention || node.stored_by != kNone) continue;
    const uint64_t page =
        node.kv_head_count * (key_block_bytes(format.keys, node.head_dimension) +
                              value_block_bytes(format.values, node.value_dimension));
    parts[part] += pages * page;
  }
}

// The bytes that each rank takes of its GPU for these parts.
std::vector<uint64_t> taken_by(const Split& split, const std::vector<uint64_t>& parts,
                               std::span<const LayerBorder> borders) {
  std::vector<uint64_t> taken(split.rank_count);
  for (size_t part = 0; part < parts.size(); ++part) {
    const size_t first_node = part == 0 ? 0 : borders[part - 1].node;
    taken[split.owners[first_node]] += parts[part];
  }
  return taken;
}

class LayerChoice {
 public:
  LayerChoice(const Model& model, const Machine& machine, const ModelLayout& layout)
      : model_(model),
        machine_(machine),
        layout_(layout),
        shares_(shares_of(layout.places).dense),
        borders_(find_layer_borders(model.graph)) {}

  Result<Split> fastest() const { return split_layers(model_.graph, shares_); }

  // None: it is not found.
  std::optional<Split> find_fitting(const Split& fastest, size_t pages) const {
    LayerMemory memory{.parts = weight_bytes_between(model_.graph, borders_), .space = {}};
    add_cache(model_, layout_, borders_, pages, memory.parts);
    std::optional<Split> split = fastest;
    std::vector<uint64_t> beside(split->rank_count);  // the most that a rank was seen to take so
    const auto draft = layout_.draft_sizes_with(pages);
    for (int round = 0; split && round < kRounds; ++round) {
      const auto sizes = rank_sizes(model_, *split, layout_.plan_options, pages, layout_.places,
                                    layout_.gpus_linked);
      const std::vector<uint64_t> taken = taken_by(*split, memory.parts, borders_);
      bool fits = true;
      memory.space.clear();
      for (size_t rank = 0; rank < sizes.size(); ++rank) {
        const uint64_t own = sizes[rank].gpu_bytes();
        const uint64_t space = space_of(rank, draft);
        fits = fits && own <= space;
        beside[rank] = std::max(beside[rank], own - std::min(own, taken[rank]));
        memory.space.push_back(space - std::min(space, beside[rank]));
      }
      if (fits) return split;
      auto next = split_layers(model_.graph, shares_, memory);
      split =
          next && next->borders != split->borders ? std::optional(std::move(*next)) : std::nullopt;
    }
    return std::nullopt;
  }

 private:
  // Beside the draft model, if there is one.
  uint64_t space_of(size_t rank, const std::vector<RankSizes>& draft) const {
    const RankPlace& place = layout_.places[rank];
    const uint64_t space = device_of(place).takeable_bytes(machine_, place);
    return draft.empty() ? space : space - std::min(space, draft[rank].gpu_bytes());
  }

  const Model& model_;
  const Machine& machine_;
  const ModelLayout& layout_;
  const std::vector<double> shares_;
  const std::vector<LayerBorder> borders_;
};

}  // namespace

Result<Split> place_layers(const Model& model, const Settings& settings, const Machine& machine,
                           const ModelLayout& layout) {
  const LayerChoice choice(model, machine, layout);
  auto fastest = choice.fastest();
  if (!fastest || fastest->rank_count == 1) return fastest;
  const KvPageCount count(model.graph, layout.plan_options.batch_tokens);
  const size_t context = settings.context_tokens != 0
                             ? settings.context_tokens
                             : std::min(model.trained_context_tokens, kLeastAutomaticContext);
  const size_t wanted = settings.context_tokens != 0 ? wanted_pages(settings, count, context)
                                                     : count.of_sequence(context);
  for (const size_t pages : {wanted, size_t{1}}) {
    if (auto fitting = choice.find_fitting(*fastest, pages)) return std::move(*fitting);
  }
  return fastest;
}

}  // namespace lockstep
