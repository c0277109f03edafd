// Graphs of a grid of shapes are split over up to eight ranks: nothing is refused but ranks of
// which one would have nothing at all to compute.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/planner/planner.h"
#include "engine/planner/split_graph.h"

namespace lockstep {
namespace {

constexpr size_t kGridColumns = 512;
constexpr size_t kGridExperts = 3;

struct Shape {
  Format format = Format::kQ4_K;
  Format bias_format = Format::kF32;
  size_t heads = 8;
  size_t kv_heads = 8;
  size_t head_dimension = 64;
  size_t feed_forward = 768;
  bool is_mixture = false;
  size_t layers = 2;
  size_t vocabulary = 2048;

  std::string text() const {
    return fmt::format("{}, biases {}, {} heads of {} with {} of KV, feed-forward {}{}",
                       traits(format).name, traits(bias_format).name, heads, head_dimension,
                       kv_heads, feed_forward, is_mixture ? " of experts" : "");
  }
  // Rows are cut into whole blocks when a file is written: there are no other files.
  bool is_possible() const {
    const size_t block = traits(format).block_elements;
    const size_t bias_block = traits(bias_format).block_elements;
    return heads * head_dimension % block == 0 && kv_heads * head_dimension % bias_block == 0 &&
           heads * head_dimension % bias_block == 0;
  }
};

// Layers whose products all have biases but for those that a convolution reads.
class Builder {
 public:
  explicit Builder(const Shape& shape) : shape_(shape) {}

  Graph make() {
    ValueId x = graph_.embed(matrix(shape_.vocabulary, kGridColumns));
    for (size_t layer = 0; layer < shape_.layers; ++layer) {
      x = graph_.add(x, attention(norm(x), layer));
      if (!shape_.is_mixture) x = graph_.add(x, convolution(norm(x)));
      x = graph_.add(x, feed_forward(norm(x)));
    }
    const ValueId last = norm(graph_.select_rows(x));
    graph_.set_logits(graph_.matmul(last, matrix(shape_.vocabulary, kGridColumns)));
    return std::move(graph_);
  }

 private:
  WeightId matrix(size_t rows, size_t columns) {
    return graph_.add_matrix("matrix", shape_.format, rows, columns);
  }
  WeightId bias(size_t rows) { return graph_.add_vector("bias", shape_.bias_format, rows); }
  ValueId norm(ValueId x) {
    return graph_.rms_norm(x, graph_.add_vector("norm", Format::kF32, kGridColumns), 1e-5F);
  }
  ValueId product(ValueId x, size_t rows) {
    return graph_.matmul(x, matrix(rows, graph_.columns(x)), bias(rows));
  }
  ValueId attention(ValueId x, size_t layer) {
    const size_t kv_rows = shape_.kv_heads * shape_.head_dimension;
    const ValueId queries = product(x, shape_.heads * shape_.head_dimension);
    const ValueId keys = product(x, kv_rows);
    const ValueId values = product(x, kv_rows);
    const ValueId attended = graph_.attention(layer, queries, keys, values, shape_.heads,
                                              shape_.kv_heads, {.scale = 1.0F});
    return product(attended, kGridColumns);
  }
  // Its products have no biases, so that its own alone tells where it may be cut.
  ValueId convolution(ValueId x) {
    constexpr size_t kTaps = 3;
    const size_t columns = shape_.feed_forward;
    const auto part = [&] { return graph_.matmul(x, matrix(columns, graph_.columns(x))); };
    const ValueId input = part();
    const ValueId before = part();
    const ValueId behind = part();
    const WeightId factors = graph_.add_vector("factors", Format::kF32, kTaps * columns);
    return product(graph_.convolve_gated(input, before, behind, factors, bias(columns)),
                   kGridColumns);
  }
  ValueId feed_forward(ValueId x) {
    if (!shape_.is_mixture) {
      const ValueId gate = product(x, shape_.feed_forward);
      const ValueId up = product(x, shape_.feed_forward);
      return product(graph_.gate(ActivationFunction::kSilu, gate, up), kGridColumns);
    }
    const WeightId router = graph_.add_matrix("router", Format::kF32, kGridExperts, kGridColumns);
    const ValueId routing = graph_.route(graph_.matmul(x, router), 2);
    const ValueId gate = graph_.expert_matmul(
        x, routing, experts(shape_.feed_forward, kGridColumns), biases(shape_.feed_forward));
    const ValueId up = graph_.expert_matmul(x, routing, experts(shape_.feed_forward, kGridColumns),
                                            biases(shape_.feed_forward));
    return graph_.expert_sum(graph_.gate(ActivationFunction::kSilu, gate, up), routing,
                             experts(kGridColumns, shape_.feed_forward), biases(kGridColumns));
  }
  std::vector<WeightId> experts(size_t rows, size_t columns) {
    std::vector<WeightId> all;
    for (size_t expert = 0; expert < kGridExperts; ++expert) {
      all.push_back(graph_.add_matrix("expert", shape_.format, rows, columns, expert * rows));
    }
    return all;
  }
  std::vector<WeightId> biases(size_t rows) {
    std::vector<WeightId> all;
    for (size_t expert = 0; expert < kGridExperts; ++expert) {
      all.push_back(graph_.add_vector("bias", shape_.bias_format, rows, expert));
    }
    return all;
  }

  const Shape& shape_;
  Graph graph_;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const Format format : {Format::kQ8_0, Format::kQ4_K}) {
    for (const Format bias_format : {Format::kF32, Format::kQ8_0, Format::kQ4_K}) {
      for (const auto& [heads, kv_heads] :
           std::vector<std::pair<size_t, size_t>>{{1, 1}, {4, 1}, {6, 3}, {8, 8}, {16, 2}}) {
        for (const size_t head_dimension : {16U, 64U, 96U, 128U, 256U}) {
          for (const size_t feed_forward : {256U, 768U, 1280U}) {
            for (const bool is_mixture : {false, true}) {
              const Shape shape{format,         bias_format,  heads,     kv_heads,
                                head_dimension, feed_forward, is_mixture};
              if (shape.is_possible()) all.push_back(shape);
            }
          }
        }
      }
    }
  }
  return all;
}

// That the ranks' parts of each weight are all of it, and whole blocks.
void expect_whole(const Graph& graph, const Split& split) {
  for (WeightId id = 0; id < split.weights.size(); ++id) {
    const Weight& weight = graph.weights()[id];
    const WeightSplit& cut = split.weights[id];
    if (cut.kind == SplitKind::kMirrored) continue;
    const bool by_columns = cut.by_columns || !weight.is_matrix;
    const size_t total = by_columns ? weight.columns : weight.rows;
    const size_t block = by_columns ? traits(weight.format).block_elements : 1;
    std::vector<bool> held(total);
    for (const Range& range : cut.ranges) {
      if (range.empty()) continue;
      ASSERT_LE(range.end, total) << weight.name;
      ASSERT_EQ(range.begin % block, 0U) << weight.name << " " << id;
      ASSERT_EQ(range.end % block, 0U) << weight.name << " " << id;
      std::fill(held.begin() + static_cast<ptrdiff_t>(range.begin),
                held.begin() + static_cast<ptrdiff_t>(range.end), true);
    }
    ASSERT_EQ(std::ranges::count(held, false), 0) << weight.name << " " << id;
  }
}

void expect_plans(const Graph& graph, const Split& split) {
  const PlanOptions options{.batch_tokens = 8, .logit_rows = 4, .kv_pages = 1};
  for (size_t rank = 0; rank < split.rank_count; ++rank) {
    ASSERT_GT(make_plan(graph, split, rank, options).weight_bytes, 0U) << rank;
  }
}

TEST(SplitGrid, no_shape_is_refused_on_up_to_eight_ranks) {
  size_t splits = 0;
  for (const Shape& shape : shapes()) {
    const Graph graph = Builder(shape).make();
    for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
      for (size_t ranks = 1; ranks <= 8; ++ranks) {
        for (const double first : {1.0, 2.5}) {
          SCOPED_TRACE(fmt::format("{}, {} ranks, {}, share {} of the first", shape.text(), ranks,
                                   strategy_name(strategy), first));
          std::vector<double> shares(ranks, 1.0);
          shares.front() = first;
          const auto split = split_graph(graph, shares, strategy);
          ASSERT_TRUE(split.has_value()) << split.error().message;
          expect_whole(graph, *split);
          if (ranks == 3 || ranks == 8) expect_plans(graph, *split);
          if (HasFatalFailure()) return;
          ++splits;
        }
      }
    }
  }
  EXPECT_GT(splits, 5000U);
}

// There is a part for each product that is added to a residual, and one with the output.
TEST(SplitGrid, whole_layers_are_on_up_to_as_many_ranks_as_there_are_parts) {
  size_t splits = 0;
  for (const Shape& shape : shapes()) {
    const Graph graph = Builder(shape).make();
    const size_t parts = shape.layers * (shape.is_mixture ? 2 : 3) + 1;
    for (size_t ranks = 1; ranks <= parts + 1; ++ranks) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", shape.text(), ranks));
      const auto split = split_graph(graph, std::vector<double>(ranks, 1.0), Strategy::kLayers);
      ASSERT_EQ(split.has_value(), ranks <= parts) << (split ? "" : split.error().message);
      if (!split) {
        EXPECT_NE(split.error().message.find("use fewer ranks"), std::string::npos);
        continue;
      }
      expect_whole(graph, *split);
      if (ranks == parts) expect_plans(graph, *split);
      if (HasFatalFailure()) return;
      ++splits;
    }
  }
  EXPECT_GT(splits, 1000U);
}

// GPUs have all but the experts, and nodes those. A node has nothing only where all layers together
// have fewer blocks than there are nodes.
TEST(SplitGrid, experts_on_nodes_are_refused_where_there_are_more_nodes_than_blocks_alone) {
  size_t refusals = 0;
  for (const Shape& shape : shapes()) {
    if (!shape.is_mixture) continue;
    const Graph graph = Builder(shape).make();
    for (size_t gpus = 1; gpus <= 4; ++gpus) {
      for (size_t nodes = 1; nodes <= 8; ++nodes) {
        for (const size_t apart_layers : {1U, 2U}) {
          SCOPED_TRACE(fmt::format("{}, {} GPUs, {} nodes, {} layers", shape.text(), gpus, nodes,
                                   apart_layers));
          Shares shares;
          shares.apart_layers = apart_layers;
          for (size_t rank = 0; rank < gpus + nodes; ++rank) {
            shares.dense.push_back(rank < gpus ? 1 : 0);
            shares.experts.push_back(rank < gpus ? 0 : 1);
          }
          const size_t block = std::max<size_t>(
              {32, traits(shape.format).block_elements, traits(shape.bias_format).block_elements});
          const size_t blocks = apart_layers * (shape.feed_forward / block);
          const auto split = split_graph(graph, shares, Strategy::kReduce);
          ASSERT_EQ(split.has_value(), nodes <= blocks) << (split ? "" : split.error().message);
          if (split) {
            expect_whole(graph, *split);
          } else {
            ++refusals;
            ASSERT_NE(split.error().message.find("would hold nothing"), std::string::npos);
          }
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(refusals, 0U);
}

// The remedy that is named, fewer ranks, works down to some number, and one rank always does.
TEST(SplitGrid, more_ranks_than_a_small_model_has_pieces_are_refused_and_fewer_are_not) {
  const Shape shape{.heads = 4, .kv_heads = 4, .feed_forward = 256, .vocabulary = 64};
  const Graph graph = Builder(shape).make();
  for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
    bool was_refused = false;
    for (size_t ranks = 64; ranks > 0; --ranks) {
      const auto split = split_graph(graph, std::vector<double>(ranks, 1.0), strategy);
      was_refused = was_refused || !split;
      if (split) continue;
      EXPECT_GT(ranks, 2U) << split.error().message;
      EXPECT_NE(split.error().message.find("use fewer ranks"), std::string::npos);
    }
    EXPECT_TRUE(was_refused);
  }
}

// Qwen3-30B-A3B: experts of 768 columns, which are 3 blocks of 256.
TEST(SplitGrid, experts_of_three_blocks_lie_evenly_over_four_ranks) {
  const Shape shape{.heads = 32,
                    .kv_heads = 4,
                    .head_dimension = 128,
                    .feed_forward = 768,
                    .is_mixture = true,
                    .layers = 48};
  const Graph graph = Builder(shape).make();
  const auto split = split_graph(graph, std::vector<double>(4, 1.0), Strategy::kReduce);
  ASSERT_TRUE(split.has_value()) << split.error().message;
  const PlanOptions options{.batch_tokens = 8, .logit_rows = 4, .kv_pages = 1};
  std::vector<size_t> bytes;
  for (size_t rank = 0; rank < 4; ++rank) {
    bytes.push_back(make_plan(graph, *split, rank, options).weight_bytes);
  }
  const auto [least, most] = std::ranges::minmax(bytes);
  EXPECT_LT(static_cast<double>(most), 1.02 * static_cast<double>(least));
}

}  // namespace
}  // namespace lockstep
