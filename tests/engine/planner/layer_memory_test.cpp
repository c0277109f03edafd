// The choice of borders between layers, beside a search of all of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/planner/layer_split.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

constexpr size_t kResidualColumns = 64;

// Residual layers of one gateless feed-forward each, as wide as `widths` say.
Graph graph_of(const std::vector<size_t>& widths) {
  Graph graph;
  const WeightId table = graph.add_matrix("table", Format::kF32, 96, kResidualColumns);
  ValueId x = graph.embed(table);
  for (const size_t width : widths) {
    const std::string name = fmt::format("{}.", graph.weights().size());
    const ValueId wide =
        graph.matmul(x, graph.add_matrix(name + "up", Format::kF32, width, kResidualColumns));
    const ValueId y = graph.activation(ActivationFunction::kGelu, wide);
    x = graph.add(
        x, graph.matmul(y, graph.add_matrix(name + "down", Format::kF32, kResidualColumns, width)));
  }
  graph.set_logits(graph.matmul(graph.select_rows(x), table));
  return graph;
}

// A rank's bytes of matrices that a split multiplies with; the table is looked up by the last one,
// and multiplied with by the first one.
double slowest_time(const Graph& graph, const Split& split, const std::vector<double>& shares) {
  std::vector<double> bytes(split.rank_count);
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation != Operation::kMatmul) continue;
    const Weight& weight = graph.weights()[node.weight];
    bytes[split.owners[node.output]] += static_cast<double>(4 * weight.rows * weight.columns);
  }
  double slowest = 0;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    if (bytes[rank] == 0) return std::numeric_limits<double>::infinity();
    slowest = std::max(slowest, bytes[rank] / shares[rank]);
  }
  return slowest;
}

// Whether each rank has space for the parts that are its.
bool has_space(const Split& split, const std::vector<LayerBorder>& borders,
               const LayerMemory& memory) {
  std::vector<uint64_t> taken(split.rank_count);
  for (size_t part = 0; part < memory.parts.size(); ++part) {
    taken[split.owners[part == 0 ? 0 : borders[part - 1].node]] += memory.parts[part];
  }
  return std::ranges::equal(taken, memory.space, std::less_equal());
}

// The best time of all choices of borders; of those with space, if any.
struct Searched {
  double fastest = std::numeric_limits<double>::infinity();
  double fitting = std::numeric_limits<double>::infinity();
};
Searched search(const Graph& graph, const std::vector<LayerBorder>& borders,
                const std::vector<double>& shares, const LayerMemory& memory) {
  Searched found;
  for (size_t chosen = 0; chosen < size_t{1} << borders.size(); ++chosen) {
    if (static_cast<size_t>(std::popcount(chosen)) + 1 != shares.size()) continue;
    std::vector<LayerBorder> some;
    for (size_t border = 0; border < borders.size(); ++border) {
      if ((chosen >> border & 1) != 0) some.push_back(borders[border]);
    }
    const Split split = split_at_borders(graph, some);
    const double time = slowest_time(graph, split, shares);
    found.fastest = std::min(found.fastest, time);
    if (has_space(split, borders, memory)) found.fitting = std::min(found.fitting, time);
  }
  return found;
}

TEST(LayerMemory, borders_are_the_fastest_that_fit) {
  size_t limited = 0;
  size_t hopeless = 0;
  for (uint64_t seed = 0; seed < tried_cases(200); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t count) { return random() % count; };
    std::vector<size_t> widths(2 + pick(6));
    for (size_t& width : widths) width = 32 * (1 + pick(8));
    const Graph graph = graph_of(widths);
    const std::vector<LayerBorder> borders = find_layer_borders(graph);
    LayerMemory memory{.parts = weight_bytes_between(graph, borders), .space = {}};
    std::vector<double> shares;
    uint64_t all = 0;
    for (const uint64_t part : memory.parts) all += part;
    const size_t ranks = 2 + pick(2);
    for (size_t rank = 0; rank < ranks; ++rank) {
      shares.push_back(static_cast<double>(1 + pick(3)));
      memory.space.push_back(all / ranks / 2 + pick(all));
    }
    const Searched searched = search(graph, borders, shares, memory);
    const auto split = split_layers(graph, shares, memory);
    ASSERT_TRUE(split.has_value()) << split.error().message;
    const bool fits = searched.fitting < std::numeric_limits<double>::infinity();
    EXPECT_EQ(slowest_time(graph, *split, shares), fits ? searched.fitting : searched.fastest);
    EXPECT_EQ(has_space(*split, borders, memory), fits);
    limited += fits && searched.fitting > searched.fastest ? 1 : 0;
    hopeless += fits ? 0 : 1;
  }
  EXPECT_GT(limited, 0U);
  EXPECT_GT(hopeless, 0U);
}

}  // namespace
}  // namespace lockstep
