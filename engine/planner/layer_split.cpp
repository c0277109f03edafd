#include "engine/planner/layer_split.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "engine/base/check.h"
#include "engine/operations/operation_table.h"
#include "engine/tensor/formats.h"

namespace lockstep {
namespace {

std::vector<WeightId> weights_of(const GraphNode& node) {
  std::vector<WeightId> all = {node.weight, node.bias, node.skip, node.attention.sinks};
  all.insert(all.end(), node.experts.begin(), node.experts.end());
  all.insert(all.end(), node.biases.begin(), node.biases.end());
  std::erase(all, kNone);
  return all;
}

// The last node that reads each value, or what the value's attention has stored; the value's own
// where there is none.
std::vector<size_t> last_uses(const Graph& graph) {
  std::vector<size_t> last(graph.value_count());
  for (const GraphNode& node : graph.nodes()) {
    last[node.output] = node.output;
    for (const ValueId input : node.inputs) last[input] = node.output;
    if (node.stored_by != kNone) last[node.stored_by] = node.output;
  }
  return last;
}

// Whether the value can be handed on: something reads it as rows in f32, of every token.
bool is_residual(const Graph& graph, const ValueReaders& readers, ValueId value) {
  return graph.rows(value) == Rows::kTokens &&
         std::ranges::any_of(readers.nodes, [&](size_t reader) {
           return multiplied_weight(graph.nodes()[reader], value) == kNone;
         });
}

uint64_t bytes_of(const Weight& weight) {
  const FormatTraits& format = traits(weight.format);
  return uint64_t{weight.rows} * weight.columns / format.block_elements * format.block_bytes;
}

uint64_t multiplied_bytes(const Graph& graph, const GraphNode& node) {
  const Cost cost = row_of(node.operation).cost;
  if (cost != Cost::kMatrix && cost != Cost::kExperts) return 0;
  uint64_t bytes = 0;
  for (const WeightId id : weights_of(node)) {
    const Weight& weight = graph.weights()[id];
    if (weight.is_matrix) bytes += bytes_of(weight);
  }
  return bytes;
}

// Chooses the borders. Of `parts` between all borders each rank gets some that follow one another.
class BorderChoice {
 public:
  // `parts`: bytes that are multiplied with; `shares`: of the ranks in the order of their layers.
  BorderChoice(const std::vector<uint64_t>& parts, std::vector<double> shares)
      : shares_(std::move(shares)), sums_(sums_of(parts)) {}

  // `space`: in the order of their layers.
  void limit(const std::vector<uint64_t>& taken, std::vector<uint64_t> space) {
    taken_ = sums_of(taken);
    space_ = std::move(space);
  }

  // The parts with which the ranks but the first begin; none: a rank would have nothing to do.
  std::vector<size_t> find();

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  static std::vector<uint64_t> sums_of(const std::vector<uint64_t>& parts) {
    std::vector<uint64_t> sums = {0};
    for (const uint64_t part : parts) sums.push_back(sums.back() + part);
    return sums;
  }

  double time(size_t rank, size_t begin, size_t end) const {
    const uint64_t bytes = sums_[end] - sums_[begin];
    if (!space_.empty() && taken_[end] - taken_[begin] > space_[rank]) return kNever;
    return bytes == 0 ? kNever : static_cast<double>(bytes) / shares_[rank];
  }

  std::vector<double> shares_;
  // Sums of the parts before each, and of all.
  std::vector<uint64_t> sums_;
  std::vector<uint64_t> taken_ = {};
  std::vector<uint64_t> space_ = {};  // none: it does not matter
};

// By the number of ranks and of parts that they have: the time of the slowest, and what the last of
// them begins with.
std::vector<size_t> BorderChoice::find() {
  const size_t part_count = sums_.size() - 1;
  struct Best {
    double time = kNever;
    size_t begin = 0;
  };
  std::vector<std::vector<Best>> best(shares_.size(), std::vector<Best>(part_count + 1));
  for (size_t end = 1; end <= part_count; ++end) best[0][end] = {time(0, 0, end), 0};
  for (size_t rank = 1; rank < shares_.size(); ++rank) {
    for (size_t end = 1; end <= part_count; ++end) {
      for (size_t begin = 1; begin < end; ++begin) {
        const double slowest = std::max(best[rank - 1][begin].time, time(rank, begin, end));
        if (slowest < best[rank][end].time) best[rank][end] = {slowest, begin};
      }
    }
  }
  if (best.back().back().time == kNever) return {};
  std::vector<size_t> begins;
  size_t end = part_count;
  for (size_t rank = shares_.size() - 1; rank > 0; --rank) {
    end = best[rank][end].begin;
    begins.push_back(end);
  }
  std::ranges::reverse(begins);
  return begins;
}

// The bytes of each part, from the border before it on.
template <typename BytesOfNode>
std::vector<uint64_t> bytes_between(const Graph& graph, std::span<const LayerBorder> borders,
                                    const BytesOfNode& bytes_of_node) {
  std::vector<uint64_t> parts(borders.size() + 1);
  size_t part = 0;
  for (const GraphNode& node : graph.nodes()) {
    if (part < borders.size() && borders[part].node == node.output) ++part;
    parts[part] += bytes_of_node(node);
  }
  return parts;
}

std::vector<uint64_t> multiplied_between(const Graph& graph, std::span<const LayerBorder> borders) {
  return bytes_between(graph, borders,
                       [&](const GraphNode& node) { return multiplied_bytes(graph, node); });
}

}  // namespace

std::vector<LayerBorder> find_layer_borders(const Graph& graph) {
  const std::vector<size_t> last = last_uses(graph);
  const std::vector<ValueReaders> readers = find_readers(graph);
  std::vector<LayerBorder> borders;
  std::vector<ValueId> alive;  // computed, and read by nodes to come
  for (size_t node = 0; node < graph.nodes().size(); ++node) {
    std::erase_if(alive, [&](ValueId value) { return last[value] < node; });
    if (alive.size() == 1 && is_residual(graph, readers[alive.front()], alive.front())) {
      borders.push_back({node, alive.front()});
    }
    alive.push_back(node);
  }
  return borders;
}

Split split_at_borders(const Graph& graph, std::span<const LayerBorder> borders) {
  Split split;
  split.strategy = Strategy::kLayers;
  split.rank_count = borders.size() + 1;
  split.borders.assign(borders.begin(), borders.end());
  split.weights.resize(graph.weights().size());
  size_t owner = borders.size();
  for (const GraphNode& node : graph.nodes()) {
    if (owner > 0 && split.borders[borders.size() - owner].node == node.output) --owner;
    split.owners.push_back(owner);
    ValueSplit& value = split.values.emplace_back();
    value = {SplitKind::kSliced, std::vector<Range>(split.rank_count)};
    value.columns[owner] = {0, graph.columns(node.output)};
    for (const WeightId id : weights_of(node)) {
      const Weight& weight = graph.weights()[id];
      WeightSplit& held = split.weights[id];
      held.kind = SplitKind::kSliced;
      held.by_columns = !weight.is_matrix;
      held.ranges.resize(split.rank_count);
      held.ranges[owner] = {0, weight.is_matrix ? weight.rows : weight.columns};
    }
  }
  for (const LayerBorder& border : borders) {
    CHECK(split.owners[border.node] + 1 == split.owners[border.node - 1],
          "node {} is no border of its own", border.node);
    split.values[border.residual].columns[split.owners[border.node]] = {
        0, graph.columns(border.residual)};
  }
  return split;
}

std::vector<uint64_t> weight_bytes_between(const Graph& graph,
                                           std::span<const LayerBorder> borders) {
  return bytes_between(graph, borders, [&](const GraphNode& node) {
    uint64_t bytes = 0;
    for (const WeightId id : weights_of(node)) bytes += bytes_of(graph.weights()[id]);
    return bytes;
  });
}

Result<Split> split_layers(const Graph& graph, std::span<const double> shares,
                           const std::optional<LayerMemory>& memory) {
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank] > 0) continue;
    return invalid_input(
        "rank {} of {} would have no layers: its share is 0; use fewer ranks (fewer GPUs in "
        "--devices) or a share for it in --shares",
        rank, shares.size());
  }
  const std::vector<LayerBorder> all = find_layer_borders(graph);
  if (shares.size() == 1) return split_at_borders(graph, {});
  if (all.empty()) {
    return invalid_input(
        "this model's layers cannot be given to different ranks: several values go through all of "
        "them; use --strategy reduce");
  }
  const std::vector<uint64_t> parts = multiplied_between(graph, all);
  BorderChoice choice(parts, {shares.rbegin(), shares.rend()});
  if (memory) choice.limit(memory->parts, {memory->space.rbegin(), memory->space.rend()});
  const auto begins = choice.find();
  if (begins.empty() && memory) return split_layers(graph, shares);
  if (begins.empty()) {
    return invalid_input(
        "{} ranks are more than this model has parts between layers, {} with products; use fewer "
        "ranks (fewer GPUs in --devices)",
        shares.size(), std::ranges::count_if(parts, std::identity()));
  }
  std::vector<LayerBorder> chosen;
  for (const size_t begin : begins) chosen.push_back(all[begin - 1]);
  return split_at_borders(graph, chosen);
}

}  // namespace lockstep
