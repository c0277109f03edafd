#include "engine/graph/fusion/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "engine/graph/operations.h"
#include "engine/kernels/gpu_product.h"

namespace lockstep {
namespace {

// Earlier rules take nodes that later ones then leave alone: a gate's products are no longer among
// those that share an input.
constexpr FusionRule kRules[] = {
    {Fusion::kGate, "gate", fuse_gate},
    {Fusion::kActivation, "activation", fuse_activation},
    {Fusion::kMixtureGate, "mixture-gate", fuse_mixture_gate},
    {Fusion::kResidual, "residual", fuse_residual},
    {Fusion::kMixtureSum, "mixture-sum", fuse_mixture_sum},
    {Fusion::kQkv, "qkv", fuse_qkv},
    {Fusion::kHeads, "heads", fuse_heads},
    {Fusion::kSelect, "select", fuse_select},
    {Fusion::kNorm, "norm", fuse_norm},
};
static_assert(std::size(kRules) == kFusionCount);

// Names the first trait that the attention of GPUs lacks.
std::optional<std::string_view> attention_gap(const GraphNode& node) {
  const AttentionTraits& attention = node.attention;
  if (node.stored_by != kNone) return "attention over another layer's keys";
  if (has_values_in_keys(node)) return "attention with values in its keys";
  if (node.value_dimension != node.head_dimension) {
    return "attention with values of another dimension than keys";
  }
  if (attention.section != 0) return "attention within sections";
  if (attention.ahead != 0) return "attention to later tokens";
  if (attention.score_cap != 0) return "attention with a cap of scores";
  if (attention.alibi_bias != 0) return "attention with slopes (ALiBi)";
  if (attention.sinks != kNone) return "attention with sinks";
  return std::nullopt;
}

// Whether layers have heads of different numbers or sizes.
bool has_heads_by_layer(const Graph& graph) {
  const GraphNode* first = nullptr;
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    if (first == nullptr) first = &node;
    const bool is_alike = node.head_count == first->head_count &&
                          node.kv_head_count == first->kv_head_count &&
                          node.head_dimension == first->head_dimension;
    if (!is_alike) return true;
  }
  return false;
}

bool has_scale(const Graph& graph, const GraphNode& node) {
  const auto is_scaled = [&](WeightId id) { return graph.weights()[id].scale != 1; };
  return (node.weight != kNone && is_scaled(node.weight)) ||
         std::ranges::any_of(node.experts, is_scaled);
}

// A part of this group's step that a GPU cannot compute.
std::optional<std::string_view> gap_of(const Graph& graph, const Split& split,
                                       const std::vector<ValueReaders>& readers,
                                       const Group& group) {
  const GraphNode& lead = graph.nodes()[group.lead];
  const OperationTraits& plain = traits(lead.operation);
  if (group.nodes.size() == 1 && !plain.has_gpu_step) return plain.name;
  if (lead.operation == Operation::kEmbed && lead.index != EmbedIndex::kToken) {
    return "embedding of positions and segments";
  }
  if (lead.operation == Operation::kRmsNorm &&
      !is_norm_factored(graph, readers[group.lead], group.lead)) {
    return "RMS norm that more than products read";
  }
  const bool is_sum =
      lead.operation == Operation::kMatmul || lead.operation == Operation::kExpertSum;
  const bool is_partial = split.values[group.lead].kind == SplitKind::kPartial;
  if (is_sum && is_partial && !node_of(graph, group, Operation::kAdd)) {
    return "sum of GPUs' partial results that is no residual";
  }
  if (nodes_of(graph, group, Operation::kRmsNorm).size() > kGpuProductNorms) {
    return "step of so many norms";
  }
  const size_t products = nodes_of(graph, group, Operation::kMatmul).size();
  if (products > kGpuProductParts) return "step of so many products";
  if (lead.operation == Operation::kAttention) {
    if (const auto gap = attention_gap(lead)) return gap;
  }
  for (const size_t node : group.nodes) {
    const GraphNode& member = graph.nodes()[node];
    if (member.operation == Operation::kRoute &&
        (member.gating != Gating() || member.bias != kNone)) {
      return "routing by anything but the softmax of the chosen scores";
    }
    if (!member.biases.empty()) return "experts' biases";
    if (has_scale(graph, member)) return "product with a matrix's scale";
    if (member.operation == Operation::kActivation) return traits(member.operation).name;
    if (member.operation == Operation::kGate && member.activation != ActivationFunction::kSilu) {
      return kActivationNames[static_cast<size_t>(member.activation.function)];
    }
  }
  return std::nullopt;
}

}  // namespace

std::span<const FusionRule> fusion_rules() {
  return kRules;
}

Result<FusionSet> parse_fusions(std::span<const std::string> names) {
  FusionSet set;
  for (const std::string& name : names) {
    const auto* const rule = std::ranges::find(kRules, name, &FusionRule::name);
    if (rule != std::end(kRules)) {
      set.add(rule->fusion);
    } else if (name == "all") {
      set.add_all();
    } else {
      std::vector<std::string_view> known = {"all"};
      for (const FusionRule& each : kRules) known.push_back(each.name);
      return invalid_input("fusion \"{}\" is not known; known are {}", name,
                           fmt::join(known, ", "));
    }
  }
  return set;
}

std::vector<Group> make_groups(const Graph& graph, const Split& split, const FusionSet& without) {
  Groups groups(graph, split);
  for (const FusionRule& rule : kRules) {
    if (without.has(rule.fusion)) continue;
    for (size_t node = 0; node < graph.nodes().size(); ++node) rule.apply(groups, node);
  }
  return groups.in_order();
}

std::optional<std::string_view> find_gpu_gap(const Graph& graph, const FusionSet& without) {
  if (has_heads_by_layer(graph)) return "attention with other heads than another layer's";
  const std::vector<ValueReaders> readers = find_readers(graph);
  for (const std::vector<double>& shares : {std::vector<double>{1}, {1, 1}}) {
    const Strategy strategy = shares.size() > 1 ? Strategy::kReduce : Strategy::kGather;
    const auto split = split_graph(graph, shares, strategy);
    if (!split) continue;  // which is said where a split is to be made
    for (const Group& group : make_groups(graph, *split, without)) {
      if (auto gap = gap_of(graph, *split, readers, group)) return gap;
    }
    for (const GraphNode& node : graph.nodes()) {
      const ValueSplit& value = split->values[node.output];
      if (shares.size() > 1 && (value.gathered || value.whole)) {
        return "product or sum of columns that other GPUs compute";
      }
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
