#include "engine/placement/layout_speed.h"

#include <algorithm>
#include <set>

#include "engine/operations/operation_table.h"
#include "engine/placement/device_rules.h"

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
  const std::vector<size_t>& owners = layout.split.owners;
  std::vector<ReadBytes> bytes;
  for (const auto& slices : place_all_weights(model, layout)) {
    const size_t rank = bytes.size();
    ReadBytes& own = bytes.emplace_back();
    std::set<WeightId> read;
    for (const GraphNode& node : model.graph.nodes()) {
      if (!owners.empty() && owners[node.output] != rank) continue;
      if (row_of(node.operation).cost == Cost::kMatrix) read.insert(node.weight);
      if (node.experts.empty()) continue;
      const GraphNode& routing = model.graph.producer(node.inputs[1]);
      const uint64_t each = slices[node.experts.front()].size_bytes;
      own.experts += each * routing.chosen_count;
    }
    for (const WeightId weight : read) own.all += slices[weight].size_bytes;
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

double read_seconds_by_layers(std::span<const ReadBytes> read,
                              std::span<const double> bytes_per_second) {
  double seconds = 0;
  for (size_t rank = 0; rank < read.size(); ++rank) {
    seconds += static_cast<double>(read[rank].all) / bytes_per_second[rank];
  }
  return seconds;
}

uint64_t exchanged_bytes_per_token(const Model& model, const ModelLayout& layout,
                                   Strategy strategy) {
  const auto split = split_graph(model.graph, shares_of(layout.places), strategy);
  if (!split) return 0;
  const Plan plan = make_plan(model.graph, *split, 0, layout.options_of(0));
  uint64_t columns = 0;
  for (const Step& step : plan.steps) {
    const auto* const sum = std::get_if<AllReduceStep>(&step.work);
    if (sum != nullptr && sum->rows == Rows::kTokens) columns += sum->columns;
    const auto* const hand_over = std::get_if<HandOverStep>(&step.work);
    if (hand_over != nullptr) columns += hand_over->columns;
  }
  return columns * sizeof(float);
}

uint32_t exchanges_per_token(const Model& model, const ModelLayout& layout) {
  const Plan plan = make_plan(model.graph, layout.split, 0, layout.options_of(0));
  return static_cast<uint32_t>(std::ranges::count(plan.steps, Meet::kAllRanks, &Step::meet));
}

}  // namespace lockstep
