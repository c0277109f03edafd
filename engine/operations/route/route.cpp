// Every rank that has experts finds out by itself which ones a token goes to.
#include <optional>
#include <string_view>
#include <utility>

#include "engine/kernels/gpu_experts.h"
#include "engine/operations/operation_table.h"
#include "engine/operations/rank_planner.h"

namespace lockstep {
namespace {

// A rank without scores has no experts, and leaves the routing's area as it is.
void plan_route(RankPlanner& planner, const Group& group) {
  const GraphNode& node = planner.graph().nodes()[group.lead];
  const ValueId scores = node.inputs[0];
  const Stretch rows = *planner.values().of(scores).plain;
  RouteStep step{
      .scores = planner.own_columns(scores).empty() ? ArenaOffset<float>() : rows.at<float>(),
      .score_stride = rows.floats(),
      .routing = planner.routing_of(node.output),
      .gating = node.gating,
      .bias = planner.vector(node.bias)};
  planner.values().consume(scores);
  planner.emit(std::move(step));
}

std::optional<std::string_view> route_gap(const GroupParts&, const GraphNode& node) {
  if (node.gating.group_count > kGpuGroupsMax) return "routing among so many groups of experts";
  return std::nullopt;
}

}  // namespace

const OperationRow kRouteRow = {.operation = Operation::kRoute,
                                .name = "routing",
                                .split = SplitRule::kMirrored,
                                .plan = plan_route,
                                .has_gpu_step = true,
                                .gpu_gap = route_gap};

}  // namespace lockstep
