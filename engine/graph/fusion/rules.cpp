#include "engine/graph/fusion/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>

namespace lockstep {
namespace {

// Earlier rules take nodes that later ones then leave alone: a gate's products are no longer among
// those that share an input. What gates a delta net's results is a product of the layer's input,
// which stands before it only as one of those.
constexpr FusionRule kRules[] = {
    {Fusion::kGate, "gate", fuse_gate},
    {Fusion::kActivation, "activation", fuse_activation},
    {Fusion::kMixtureGate, "mixture-gate", fuse_mixture_gate},
    {Fusion::kResidual, "residual", fuse_residual},
    {Fusion::kMixtureSum, "mixture-sum", fuse_mixture_sum},
    {Fusion::kQkv, "qkv", fuse_qkv},
    {Fusion::kConvolutions, "convolutions", fuse_convolutions},
    {Fusion::kDeltaNet, "delta-net", fuse_delta_net},
    {Fusion::kHeads, "heads", fuse_heads},
    {Fusion::kSelect, "select", fuse_select},
    {Fusion::kNorm, "norm", fuse_norm},
};
static_assert(std::size(kRules) == kFusionCount);

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

}  // namespace lockstep
