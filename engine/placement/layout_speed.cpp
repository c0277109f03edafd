#include "engine/placement/layout_speed.h"

#include <algorithm>
#include <set>

#include "engine/operations/operation_table.h"

namespace lockstep {

std::vector<std::vector<WeightSlice>> place_all_weights(const Model& model,
                                                        const ModelLayout& layout) {
  std::vector<std::vector<WeightSlice>> slices;
  for (size_t rank = 0; rank < layout.split.rank_count; ++rank) {
    slices.push_back(make_plan(model.graph, layout.split, rank, layout.options_of(rank)).weights);
  }
  return slices;
}

std::vector<ReadBytes> bytes_per_token(const Model& model, const ModelLayout& layout) {
  std::set<WeightId> read;
  for (const GraphNode& node : model.graph.nodes()) {
    if (row_of(node.operation).cost == Cost::kMatrix) read.insert(node.weight);
  }
  std::vector<ReadBytes> bytes;
  for (const auto& slices : place_all_weights(model, layout)) {
    ReadBytes& own = bytes.emplace_back();
    for (const WeightId weight : read) own.all += slices[weight].size_bytes;
    for (const GraphNode& node : model.graph.nodes()) {
      if (node.experts.empty()) continue;
      const GraphNode& routing = model.graph.producer(node.inputs[1]);
      const uint64_t each = slices[node.experts.front()].size_bytes;
      own.experts += each * routing.chosen_count;
    }
    own.all += own.experts;
  }
  return bytes;
}

double read_seconds(std::span<const ReadBytes> read, std::span<const double> bytes_per_second,
                    size_t gpu_count) {
  double dense = 0;
  double gpu_experts = 0;
  double node_experts = 0;
  for (size_t rank = 0; rank < read.size(); ++rank) {
    const double rate = bytes_per_second[rank];
    const auto own_experts = static_cast<double>(read[rank].experts);
    double& experts = rank < gpu_count ? gpu_experts : node_experts;
    dense = std::max(dense, (static_cast<double>(read[rank].all) - own_experts) / rate);
    experts = std::max(experts, own_experts / rate);
  }
  return dense + node_experts + gpu_experts;
}

uint32_t exchanges_per_token(const Model& model, const ModelLayout& layout) {
  const Plan plan = make_plan(model.graph, layout.split, 0, layout.options_of(0));
  return static_cast<uint32_t>(std::ranges::count(plan.steps, Meet::kAllRanks, &Step::meet));
}

}  // namespace lockstep
