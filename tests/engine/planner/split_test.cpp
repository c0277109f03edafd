#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/planner/planner.h"
#include "engine/planner/split_graph.h"

namespace lockstep {
namespace {

struct PaperShape {
  Format format = Format::kQ8_0;
  size_t columns = 512;
  size_t heads = 8;
  size_t kv_heads = 4;
  size_t head_dimension = 64;
  size_t feed_forward = 1024;
  size_t vocabulary = 1000;
  Format bias_format = Format::kF32;
  bool has_sinks = false;
};

struct Decoder {
  Graph graph;
  WeightId table = 0, q = 0, k = 0, v = 0, o = 0, gate = 0, up = 0, down = 0, q_bias = 0,
           o_bias = 0, norm = 0, sinks = kNone;
};

// One layer with biases, tied embeddings.
Decoder make_decoder(const PaperShape& shape) {
  Decoder d;
  Graph& graph = d.graph;
  const size_t query_columns = shape.heads * shape.head_dimension;
  const size_t kv_columns = shape.kv_heads * shape.head_dimension;
  const auto matrix = [&](const char* name, size_t rows, size_t columns) {
    return graph.add_matrix(name, shape.format, rows, columns);
  };
  d.table = matrix("table", shape.vocabulary, shape.columns);
  d.norm = graph.add_vector("norm", Format::kF32, shape.columns);
  d.q = matrix("q", query_columns, shape.columns);
  d.k = matrix("k", kv_columns, shape.columns);
  d.v = matrix("v", kv_columns, shape.columns);
  d.o = matrix("o", shape.columns, query_columns);
  d.q_bias = graph.add_vector("q_bias", shape.bias_format, query_columns);
  d.o_bias = graph.add_vector("o_bias", Format::kF32, shape.columns);
  if (shape.has_sinks) d.sinks = graph.add_vector("sinks", Format::kF32, shape.heads);
  d.gate = matrix("gate", shape.feed_forward, shape.columns);
  d.up = matrix("up", shape.feed_forward, shape.columns);
  d.down = matrix("down", shape.columns, shape.feed_forward);
  ValueId x = graph.embed(d.table);
  const ValueId h = graph.rms_norm(x, d.norm, 1e-5F);
  const ValueId attended =
      graph.attention(0, graph.matmul(h, d.q, d.q_bias), graph.matmul(h, d.k), graph.matmul(h, d.v),
                      shape.heads, shape.kv_heads, {.scale = 1.0F, .sinks = d.sinks});
  x = graph.add(x, graph.matmul(attended, d.o, d.o_bias));
  const ValueId h2 = graph.rms_norm(x, d.norm, 1e-5F);
  const ValueId act =
      graph.gate(ActivationFunction::kSilu, graph.matmul(h2, d.gate), graph.matmul(h2, d.up));
  x = graph.add(x, graph.matmul(act, d.down));
  graph.set_logits(graph.matmul(graph.rms_norm(graph.select_rows(x), d.norm, 1e-5F), d.table));
  return d;
}

using Ranges = std::vector<Range>;

TEST(Cut, covers_everything_once_at_multiples_of_the_unit) {
  for (const size_t total : {1U, 31U, 32U, 150U, 4096U, 128256U}) {
    for (const std::vector<double>& shares : std::vector<std::vector<double>>{
             {1}, {1, 1}, {3, 1}, {1, 3}, {5, 2, 1}, {1, 1, 1, 1, 1, 1, 1}, {0.001, 1}}) {
      size_t end = 0;
      for (const Range& range : cut(total, 32, shares)) {
        EXPECT_EQ(range.begin, end);
        EXPECT_TRUE(range.end % 32 == 0 || range.end == total);
        end = range.end;
      }
      EXPECT_EQ(end, total);
    }
  }
}

TEST(Cut, follows_the_shares) {
  const std::vector<double> shares = {3, 1};
  EXPECT_EQ(cut(4096, 64, shares), (Ranges{{0, 3072}, {3072, 4096}}));
}

TEST(Split, gather_cuts_every_matrix_by_rows_and_keeps_the_norms) {
  const Decoder d = make_decoder({});
  const Split split = split_graph(d.graph, std::vector<double>{1, 1}, Strategy::kGather).value();
  for (const WeightId weight : {d.table, d.q, d.k, d.v, d.o, d.gate, d.up, d.down}) {
    EXPECT_EQ(split.weights[weight].kind, SplitKind::kSliced);
    EXPECT_FALSE(split.weights[weight].by_columns);
  }
  EXPECT_EQ(split.weights[d.norm].kind, SplitKind::kMirrored);
  EXPECT_EQ(split.weights[d.q].ranges, (Ranges{{0, 256}, {256, 512}}));
  EXPECT_EQ(split.weights[d.q_bias].ranges, split.weights[d.q].ranges);
  EXPECT_EQ(split.weights[d.k].ranges, (Ranges{{0, 128}, {128, 256}}));
  EXPECT_EQ(split.weights[d.gate].ranges, split.weights[d.up].ranges);
  EXPECT_EQ(split.weights[d.table].ranges[0].end % 32, 0U);
}

TEST(Split, heads_stay_in_their_groups_where_there_are_enough_kv_heads) {
  const Decoder d = make_decoder({.heads = 32, .kv_heads = 8});
  const Split split = split_graph(d.graph, std::vector<double>{1, 1, 1}, Strategy::kGather).value();
  // 8 groups over 3 ranks: 3, 2 and 3.
  EXPECT_EQ(split.weights[d.k].ranges, (Ranges{{0, 192}, {192, 320}, {320, 512}}));
  EXPECT_EQ(split.weights[d.q].ranges, (Ranges{{0, 768}, {768, 1280}, {1280, 2048}}));
}

TEST(Split, more_ranks_than_kv_heads_share_them_and_split_the_query_heads) {
  const Decoder d = make_decoder({.heads = 8, .kv_heads = 2, .has_sinks = true});
  const Split split =
      split_graph(d.graph, std::vector<double>{1, 1, 1, 1}, Strategy::kGather).value();
  EXPECT_EQ(split.weights[d.q].ranges, (Ranges{{0, 128}, {128, 256}, {256, 384}, {384, 512}}));
  EXPECT_EQ(split.weights[d.k].ranges, (Ranges{{0, 64}, {0, 64}, {64, 128}, {64, 128}}));
  EXPECT_EQ(split.weights[d.sinks].ranges, (Ranges{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
}

TEST(Split, quantized_outputs_of_heads_are_cut_at_whole_blocks) {
  // Outputs of 16 columns a head: two heads make a block of 32.
  const Decoder d = make_decoder({.heads = 6, .kv_heads = 6, .head_dimension = 16});
  const Split split = split_graph(d.graph, std::vector<double>{1, 1, 1}, Strategy::kGather).value();
  for (const Range& range : split.weights[d.q].ranges) EXPECT_EQ(range.begin % 32, 0U);
}

TEST(Split, reduce_cuts_second_products_by_columns_at_whole_blocks) {
  const Decoder d = make_decoder({.format = Format::kQ4_K, .heads = 16});
  const Split split = split_graph(d.graph, std::vector<double>{3, 1}, Strategy::kReduce).value();
  EXPECT_TRUE(split.weights[d.down].by_columns);
  EXPECT_TRUE(split.weights[d.o].by_columns);
  EXPECT_EQ(split.weights[d.down].ranges, split.weights[d.gate].ranges);
  EXPECT_EQ(split.weights[d.down].ranges[1].begin % 256, 0U);
  EXPECT_EQ(split.weights[d.o].ranges[1].begin % 256, 0U);
  // A bias is added once.
  EXPECT_EQ(split.weights[d.o_bias].ranges, (Ranges{{0, 512}, {0, 0}}));
}

// Heads of 128 columns are half a block: one rank has both, and the other none.
TEST(Split, reduce_cuts_what_is_normed_by_heads_at_whole_blocks) {
  Graph graph;
  const auto matrix = [&](size_t rows, Format format) {
    return graph.add_matrix("matrix", format, rows, 256);
  };
  const WeightId up = matrix(256, Format::kQ4_K);
  const WeightId down = matrix(256, Format::kQ4_K);
  const ValueId x = graph.embed(matrix(1000, Format::kF32));
  const ValueId active = graph.activation(ActivationFunction::kSilu, graph.matmul(x, up));
  const ValueId normed =
      graph.head_norm(active, graph.add_vector("norm", Format::kF32, 256), 1e-5F, 2);
  const ValueId sum = graph.add(x, graph.matmul(normed, down));
  graph.set_logits(graph.matmul(graph.select_rows(sum), matrix(1000, Format::kF32)));
  const Split split = split_graph(graph, std::vector<double>{1, 1}, Strategy::kReduce).value();
  EXPECT_TRUE(split.weights[down].by_columns);
  EXPECT_EQ(split.weights[down].ranges, split.weights[up].ranges);
  for (const Range& range : split.weights[down].ranges) EXPECT_EQ(range.size() % 256, 0U);
}

struct Mixture {
  Graph graph;
  WeightId table = kNone;
  WeightId router = kNone;
  WeightId output = kNone;
  std::vector<WeightId> gates;
  std::vector<WeightId> ups;
  std::vector<WeightId> downs;
};

Mixture make_mixture(Format format = Format::kQ8_0, size_t feed_forward = 96) {
  constexpr size_t kColumns = 256;
  Mixture m;
  const auto matrices = [&](const char* name, size_t rows, size_t columns) {
    std::vector<WeightId> experts;
    for (size_t expert = 0; expert < 3; ++expert) {
      experts.push_back(m.graph.add_matrix(name, format, rows, columns, expert * rows));
    }
    return experts;
  };
  m.table = m.graph.add_matrix("table", Format::kF32, 256, kColumns);
  m.router = m.graph.add_matrix("router", Format::kF32, 3, kColumns);
  m.output = m.graph.add_matrix("output", Format::kF32, 256, kColumns);
  m.gates = matrices("gate", feed_forward, kColumns);
  m.ups = matrices("up", feed_forward, kColumns);
  m.downs = matrices("down", kColumns, feed_forward);
  const ValueId x = m.graph.embed(m.table);
  const ValueId routing = m.graph.route(m.graph.matmul(x, m.router), 2);
  const ValueId activation =
      m.graph.gate(ActivationFunction::kSilu, m.graph.expert_matmul(x, routing, m.gates),
                   m.graph.expert_matmul(x, routing, m.ups));
  const ValueId sum = m.graph.add(x, m.graph.expert_sum(activation, routing, m.downs));
  const WeightId norm = m.graph.add_vector("norm", Format::kF32, kColumns);
  m.graph.set_logits(m.graph.matmul(m.graph.rms_norm(sum, norm, 1e-5F), m.output));
  return m;
}

// A low-rank product in front of a norm, and one in attention's place, are every rank's under
// `reduce`, so that no rank reads columns of another. The products behind them are cut.
TEST(Split, reduce_lets_every_rank_compute_what_would_be_handed_round) {
  Graph graph;
  const auto matrix = [&](const char* name, size_t rows, size_t columns) {
    return graph.add_matrix(name, Format::kF32, rows, columns);
  };
  const WeightId table = matrix("table", 640, 256);
  const WeightId low = matrix("low", 128, 256);
  const WeightId high = matrix("high", 512, 128);
  const WeightId back = matrix("back", 256, 512);
  const WeightId instead = matrix("instead", 256, 256);
  const WeightId norm = graph.add_vector("norm", Format::kF32, 256);
  ValueId x = graph.embed(table);
  const ValueId latent = graph.matmul(graph.rms_norm(x, norm, 1e-5F), low);
  const ValueId y = graph.matmul(graph.rms_norm(latent, kNone, 1e-5F), high);
  x = graph.add(x, graph.matmul(graph.activation(ActivationFunction::kSilu, y), back));
  const ValueId product = graph.matmul(graph.rms_norm(x, norm, 1e-5F), instead);
  x = graph.add(x, product);
  graph.set_logits(graph.matmul(graph.rms_norm(graph.select_rows(x), norm, 1e-5F), table));
  for (const size_t ranks : {2U, 3U}) {
    const std::vector<double> shares(ranks, 1.0);
    const Split reduce = split_graph(graph, shares, Strategy::kReduce).value();
    const Split gather = split_graph(graph, shares, Strategy::kGather).value();
    for (const WeightId weight : {low, instead}) {
      const Range all = {0, graph.weights()[weight].rows};
      EXPECT_EQ(reduce.weights[weight].ranges, std::vector<Range>(ranks, all));
      EXPECT_FALSE(reduce.weights[weight].by_columns);
      EXPECT_NE(gather.weights[weight].ranges, std::vector<Range>(ranks, all));
    }
    for (const ValueSplit& value : reduce.values) EXPECT_FALSE(value.gathered || value.whole);
    EXPECT_EQ(reduce.values[latent].kind, SplitKind::kMirrored);
    EXPECT_EQ(reduce.values[product].kind, SplitKind::kMirrored);
    EXPECT_EQ(reduce.values[y].kind, SplitKind::kSliced);
    EXPECT_LT(reduce.weights[high].ranges[0].size(), 512U);
    EXPECT_TRUE(reduce.weights[back].by_columns);
  }
}

TEST(Split, experts_are_cut_alike_and_every_rank_has_the_router) {
  const Mixture m = make_mixture();
  for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
    const Split split = split_graph(m.graph, std::vector<double>{2, 1}, strategy).value();
    EXPECT_EQ(split.weights[m.router].ranges, (Ranges{{0, 3}, {0, 3}}));
    for (const auto& experts : {m.gates, m.ups}) {
      for (const WeightId expert : experts) {
        EXPECT_FALSE(split.weights[expert].by_columns);
        EXPECT_EQ(split.weights[expert].ranges, (Ranges{{0, 64}, {64, 96}}));
      }
    }
    const bool by_columns = strategy == Strategy::kReduce;
    for (const WeightId expert : m.downs) {
      EXPECT_EQ(split.weights[expert].by_columns, by_columns);
      EXPECT_EQ(split.weights[expert].ranges, split.weights[m.downs.front()].ranges);
    }
    EXPECT_EQ(split.weights[m.downs.front()].ranges,
              by_columns ? (Ranges{{0, 64}, {64, 96}}) : (Ranges{{0, 160}, {160, 256}}));
  }
}

TEST(Split, reduce_cuts_experts_at_whole_blocks) {
  const Mixture m = make_mixture(Format::kQ4_K, 512);
  const Split split = split_graph(m.graph, std::vector<double>{2, 1}, Strategy::kReduce).value();
  for (const auto& experts : {m.gates, m.ups, m.downs}) {
    EXPECT_EQ(split.weights[experts[2]].ranges, (Ranges{{0, 256}, {256, 512}}));
  }
}

TEST(Split, experts_can_be_some_ranks_and_all_else_the_others) {
  const Mixture m = make_mixture();
  const Shares by_kind = {.dense = {3, 1, 0, 0}, .experts = {0, 0, 2, 1}};
  const Split split = split_graph(m.graph, by_kind, Strategy::kReduce).value();
  for (const WeightId weight : {m.table, m.output}) {
    EXPECT_EQ(split.weights[weight].ranges, (Ranges{{0, 192}, {192, 256}, {256, 256}, {256, 256}}));
  }
  EXPECT_EQ(split.weights[m.router].ranges, (Ranges{{}, {}, {0, 3}, {0, 3}}));
  EXPECT_EQ(split.weights[m.gates[1]].ranges, (Ranges{{0, 0}, {0, 0}, {0, 64}, {64, 96}}));
  EXPECT_EQ(split.weights[m.downs[1]].ranges, split.weights[m.gates[1]].ranges);
  EXPECT_TRUE(split.weights[m.downs[1]].by_columns);
  // A rank that has nothing at all is refused: here of 96 columns in blocks of 32, in one layer.
  const Shares too_many = {.dense = {1, 0, 0, 0, 0}, .experts = {0, 1, 1, 1, 1}};
  const auto refused = split_graph(m.graph, too_many, Strategy::kReduce);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("would hold nothing"), std::string::npos);
}

// Two ranks that share all but the first layer's experts go on adding up their parts.
TEST(Split, the_experts_of_later_layers_can_be_shared_as_all_else) {
  const Mixture m = make_mixture();
  const Shares none_apart = {.dense = {3, 1, 0}, .experts = {0, 0, 1}, .apart_layers = 0};
  const auto refused = split_graph(m.graph, none_apart, Strategy::kReduce);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("rank 2 of 3 would hold nothing"), std::string::npos);
  const Shares two = {.dense = {3, 1}, .experts = {0, 1}, .apart_layers = 0};
  const Split split = split_graph(m.graph, two, Strategy::kReduce).value();
  EXPECT_EQ(split.weights[m.router].ranges, (Ranges{{0, 3}, {0, 3}}));
  EXPECT_EQ(split.weights[m.gates[1]].ranges, (Ranges{{0, 64}, {64, 96}}));
  EXPECT_TRUE(split.weights[m.downs[1]].by_columns);
}

// 3 blocks of 256 columns over 4 ranks: one has none of them, and none of the attention's output if
// that has fewer blocks.
TEST(Split, reduce_leaves_ranks_without_a_block_where_there_are_too_few) {
  const Mixture m = make_mixture(Format::kQ4_K, 768);
  const std::vector<double> shares = {1, 1, 1, 1};
  const Split split = split_graph(m.graph, shares, Strategy::kReduce).value();
  for (const auto& experts : {m.gates, m.ups, m.downs}) {
    EXPECT_EQ(split.weights[experts[2]].ranges,
              (Ranges{{0, 256}, {256, 512}, {512, 768}, {768, 768}}));
  }
  const Decoder d = make_decoder({.format = Format::kQ4_K, .feed_forward = 512});
  for (const size_t ranks : {3U, 5U, 8U}) {
    const std::vector<double> even(ranks, 1.0);
    const Split dense = split_graph(d.graph, even, Strategy::kReduce).value();
    EXPECT_EQ(dense.weights[d.down].ranges, dense.weights[d.gate].ranges);
    EXPECT_EQ(dense.weights[d.up].ranges, dense.weights[d.gate].ranges);
    for (const Range& range : dense.weights[d.down].ranges) EXPECT_EQ(range.size() % 256, 0U);
  }
}

// 2 heads of 16 are one block of the bias: one rank has both.
TEST(Split, a_bias_in_blocks_is_cut_at_whole_blocks) {
  const std::vector<double> shares = {1, 1};
  const Decoder odd = make_decoder({.format = Format::kF32,
                                    .heads = 2,
                                    .kv_heads = 2,
                                    .head_dimension = 16,
                                    .bias_format = Format::kQ8_0});
  for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
    const Split split = split_graph(odd.graph, shares, strategy).value();
    EXPECT_EQ(split.weights[odd.q_bias].ranges, split.weights[odd.q].ranges);
    for (const Range& range : split.weights[odd.q_bias].ranges) EXPECT_EQ(range.size() % 32, 0U);
  }
}

TEST(Split, a_share_that_rounds_to_nothing_is_refused) {
  const Decoder d = make_decoder({});
  const auto split = split_graph(d.graph, std::vector<double>{1, 0.0001}, Strategy::kGather);
  ASSERT_FALSE(split.has_value());
  EXPECT_NE(split.error().message.find("rank 1 of 2 would hold nothing"), std::string::npos)
      << split.error().message;
  // A router, which is held in full, is no work by itself.
  const Mixture m = make_mixture();
  const auto mixture = split_graph(m.graph, std::vector<double>{1, 0.0001}, Strategy::kGather);
  ASSERT_FALSE(mixture.has_value());
  EXPECT_NE(mixture.error().message.find("rank 1 of 2 would hold nothing"), std::string::npos)
      << mixture.error().message;
}

TEST(Split, ranks_hold_the_model_once_but_for_norms) {
  const Decoder d = make_decoder({});
  const Split whole = split_graph(d.graph, std::vector<double>{1}, Strategy::kGather).value();
  const PlanOptions options{.batch_tokens = 8, .logit_rows = 4, .kv_pages = 1};
  const size_t all = make_plan(d.graph, whole, 0, options).weight_bytes;
  for (const size_t rank_count : {2U, 4U}) {
    const std::vector<double> shares(rank_count, 1.0);
    const Split split = split_graph(d.graph, shares, Strategy::kGather).value();
    size_t held = 0;
    for (size_t rank = 0; rank < rank_count; ++rank) {
      held += make_plan(d.graph, split, rank, options).weight_bytes;
    }
    EXPECT_EQ(held, all + (rank_count - 1) * 512 * sizeof(float));
  }
}

}  // namespace
}  // namespace lockstep
