// The fusion rules, as one table that is read top to bottom: which nodes of a graph one step
// computes. No rule changes a bit of a result; each can be switched off, by name, to find a fault.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/fusion/groups.h"

namespace lockstep {

enum class Fusion : uint8_t {
  kGate,
  kActivation,
  kMixtureGate,
  kResidual,
  kMixtureSum,
  kQkv,
  kConvolutions,
  kDeltaNet,
  kHeads,
  kSelect,
  kNorm,
};
inline constexpr size_t kFusionCount = 11;

// A set of rules.
class FusionSet {
 public:
  bool has(Fusion rule) const { return rules_[static_cast<size_t>(rule)]; }
  bool empty() const { return rules_.none(); }
  void add(Fusion rule) { rules_.set(static_cast<size_t>(rule)); }
  void add_all() { rules_.set(); }

  friend bool operator==(const FusionSet&, const FusionSet&) = default;

 private:
  std::bitset<kFusionCount> rules_;
};

struct FusionRule {
  Fusion fusion = Fusion::kGate;
  std::string_view name;  // as options have it
  // Joins what the rule says about this node, if it says anything. Called for each node in order.
  void (*apply)(Groups& groups, size_t node) = nullptr;
};

// By Fusion.
std::span<const FusionRule> fusion_rules();

// Names of rules, or "all". Fails with kInvalidInput for a name that is none, and names all.
Result<FusionSet> parse_fusions(std::span<const std::string> names);

// The steps' groups, in order. `without`: the rules that are switched off.
std::vector<Group> make_groups(const Graph& graph, const Split& split, const FusionSet& without);

// The rules, each in the file of its name.
void fuse_gate(Groups& groups, size_t node);
void fuse_activation(Groups& groups, size_t node);
void fuse_mixture_gate(Groups& groups, size_t node);
void fuse_residual(Groups& groups, size_t node);
void fuse_mixture_sum(Groups& groups, size_t node);
void fuse_qkv(Groups& groups, size_t node);
void fuse_convolutions(Groups& groups, size_t node);
void fuse_delta_net(Groups& groups, size_t node);
void fuse_heads(Groups& groups, size_t node);
void fuse_select(Groups& groups, size_t node);
void fuse_norm(Groups& groups, size_t node);

}  // namespace lockstep
