// The fusion rules on graphs: which nodes become one step, and which are left alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/graph/fusion/rules.h"
#include "engine/kernels/gpu_experts.h"
#include "engine/planner/gpu_gap.h"
#include "tests/engine/planner/plan_case.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

FusionSet all_rules() {
  FusionSet all;
  all.add_all();
  return all;
}

FusionSet one_rule(Fusion fusion) {
  FusionSet set;
  set.add(fusion);
  return set;
}

TEST(FusionRules, stand_in_their_order_under_names_of_their_own) {
  ASSERT_EQ(fusion_rules().size(), kFusionCount);
  std::set<std::string_view> names;
  for (size_t index = 0; index < kFusionCount; ++index) {
    EXPECT_EQ(static_cast<size_t>(fusion_rules()[index].fusion), index);
    names.insert(fusion_rules()[index].name);
  }
  EXPECT_EQ(names.size(), kFusionCount);
}

TEST(FusionRules, are_switched_off_by_name) {
  const auto some = parse_fusions(std::vector<std::string>{"gate", "qkv"});
  ASSERT_TRUE(some.has_value());
  EXPECT_TRUE(some->has(Fusion::kGate) && some->has(Fusion::kQkv));
  EXPECT_FALSE(some->has(Fusion::kNorm));
  EXPECT_EQ(parse_fusions(std::vector<std::string>{"all"}).value(), all_rules());
  EXPECT_TRUE(parse_fusions(std::vector<std::string>{}).value().empty());
  const auto wrong = parse_fusions(std::vector<std::string>{"gate", "gates"});
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().kind, ErrorKind::kInvalidInput);
  EXPECT_THAT(wrong.error().message, HasSubstr("\"gates\""));
  EXPECT_THAT(wrong.error().message, HasSubstr("mixture-sum"));
}

// Every node is in one group, and no step reads what a later one computes.
void expect_in_order(const Graph& graph, const std::vector<Group>& groups) {
  std::vector<size_t> place(graph.nodes().size(), kNone);
  for (size_t index = 0; index < groups.size(); ++index) {
    for (const size_t node : groups[index].nodes) {
      EXPECT_EQ(place[node], kNone) << "node " << node << " is in two groups";
      place[node] = index;
    }
  }
  for (const GraphNode& node : graph.nodes()) {
    ASSERT_NE(place[node.output], kNone);
    for (const ValueId input : node.inputs) EXPECT_LE(place[input], place[node.output]);
  }
}

TEST(FusionRules, keep_every_node_once_and_the_steps_in_order) {
  for (const bool is_mixture : {false, true}) {
    const Graph graph = make_graph(Format::kQ8_0, is_mixture);
    for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
      const Split split = split_evenly(graph, 2, strategy);
      expect_in_order(graph, make_groups(graph, split, {}));
      for (const FusionRule& rule : fusion_rules()) {
        expect_in_order(graph, make_groups(graph, split, one_rule(rule.fusion)));
      }
      const auto plain = make_groups(graph, split, all_rules());
      expect_in_order(graph, plain);
      EXPECT_EQ(plain.size(), graph.nodes().size());
    }
  }
}

// A layer of the usual decoder is five groups, one of a mixture seven.
TEST(FusionRules, make_a_layer_five_steps) {
  const Graph dense = make_graph(Format::kQ8_0);
  EXPECT_EQ(make_groups(dense, split_evenly(dense, 1), {}).size(), 3 + 2 * 5U);
  const Graph mixture = make_graph(Format::kQ8_0, true);
  EXPECT_EQ(make_groups(mixture, split_evenly(mixture, 1), {}).size(), 3 + 2 * 7U);
}

// A layer of a gated delta net and nothing else; `is_read_twice`: its results are read beside the
// norm, and the keys' convolution beside its activation; `is_sliced`: beta and alpha are of one
// product; `is_narrow`: decays of each row of the states, and the gate, are products of narrow
// ones.
Graph delta_graph(bool is_read_twice = false, bool is_sliced = false, bool is_narrow = false) {
  constexpr size_t kColumns = 128;
  Graph graph;
  const auto product = [&](ValueId x, size_t rows) {
    return graph.matmul(x, graph.add_matrix("matrix", Format::kQ8_0, rows, graph.columns(x)));
  };
  const auto vector = [&](size_t columns) {
    return graph.add_vector("vector", Format::kF32, columns);
  };
  const auto convolve = [&](ValueId x) { return graph.convolve(x, vector(4 * graph.columns(x))); };
  const auto activate = [&](ValueId x) { return graph.activation(ActivationFunction::kSilu, x); };
  const WeightId table = graph.add_matrix("table", Format::kQ8_0, 100, kColumns);
  ValueId x = graph.embed(table);
  const ValueId h = graph.rms_norm(x, vector(kColumns), 1e-5F);
  const ValueId q = activate(convolve(product(h, 64)));
  const ValueId convolved = convolve(product(h, 64));
  const ValueId k = activate(convolved);
  const ValueId v = activate(convolve(product(h, 128)));
  const ValueId beta = product(h, is_sliced ? 8 : 4);
  ValueId alpha = is_sliced ? graph.slice_heads(beta, 2, 2, 2) : product(h, is_narrow ? 32 : 4);
  ValueId open = is_narrow ? product(product(h, 32), 128) : kNone;
  if (is_narrow) alpha = product(alpha, 128);
  const DeltaShape shape = {.value_heads = 4, .key_heads = 2, .epsilon = 1e-6F};
  const ValueId y = graph.delta_net(v, q, k, is_sliced ? graph.slice_heads(beta, 2, 0, 2) : beta,
                                    alpha, vector(4), vector(graph.columns(alpha)), shape);
  const ValueId normed = graph.head_norm(y, vector(32), 1e-6F, 4);
  if (!is_narrow) open = product(h, 128);
  const ValueId gated = graph.gate(ActivationFunction::kSilu, open, normed);
  x = graph.add(x, product(gated, kColumns));
  if (is_read_twice) x = graph.add(x, product(graph.add(y, v), kColumns));
  if (is_read_twice) x = graph.add(x, product(convolved, kColumns));
  const ValueId last = graph.rms_norm(graph.select_rows(x), vector(kColumns), 1e-5F);
  graph.set_logits(graph.matmul(last, table));
  return graph;
}

size_t groups_of(const Graph& graph, const FusionSet& without, size_t ranks = 2) {
  const std::vector<Group> groups = make_groups(graph, split_evenly(graph, ranks), without);
  expect_in_order(graph, groups);
  return groups.size();
}

// Products of the normed residual; convolutions; the delta net; the product that is added.
TEST(FusionRules, make_a_gated_delta_net_four_steps) {
  const Graph graph = delta_graph();
  for (const size_t ranks : {1U, 2U}) {
    SCOPED_TRACE(ranks);
    EXPECT_EQ(groups_of(graph, {}, ranks), 3 + 4U);
    EXPECT_EQ(groups_of(graph, one_rule(Fusion::kConvolutions), ranks), 3 + 4 + 5U);
    EXPECT_EQ(groups_of(graph, one_rule(Fusion::kDeltaNet), ranks), 3 + 4 + 2U);
    const Graph sliced = delta_graph(/*is_read_twice=*/false, /*is_sliced=*/true);
    EXPECT_EQ(groups_of(sliced, {}, ranks), 3 + 4U);
    EXPECT_EQ(groups_of(sliced, one_rule(Fusion::kDeltaNet), ranks), 3 + 4 + 4U);
    // The two products of narrow ones are steps of their own.
    const Graph narrow = delta_graph(/*is_read_twice=*/false, /*is_sliced=*/false, true);
    EXPECT_EQ(groups_of(narrow, {}, ranks), 3 + 6U);
    EXPECT_EQ(groups_of(narrow, one_rule(Fusion::kDeltaNet), ranks), 3 + 6 + 2U);
  }
}

TEST(FusionRules, leave_a_delta_net_alone_whose_results_something_else_reads) {
  const Graph graph = delta_graph(/*is_read_twice=*/true);
  const std::vector<Group> groups = make_groups(graph, split_evenly(graph, 2), {});
  expect_in_order(graph, groups);
  // The keys' convolution joins no activation, and values are read twice as well: so none of the
  // three joins another.
  size_t convolutions = 0;
  for (const Group& group : groups) {
    const Operation lead = graph.nodes()[group.lead].operation;
    if (lead == Operation::kDeltaNet) {
      EXPECT_EQ(group.nodes.size(), 1U);
    }
    if (lead == Operation::kConvolution) ++convolutions;
  }
  EXPECT_EQ(convolutions, 3U);
}

TEST(Groups, refuse_a_step_that_would_read_what_a_later_one_computes) {
  const Graph graph = make_graph(Format::kQ8_0);
  const Split split = split_evenly(graph, 1);
  Groups groups(graph, split);
  // The queries' product, and the attention's output, which stands behind the attention.
  const auto product = std::ranges::find(graph.nodes(), Operation::kMatmul, &GraphNode::operation);
  const auto attention =
      std::ranges::find(graph.nodes(), Operation::kAttention, &GraphNode::operation);
  const size_t output = attention->output + 1;
  EXPECT_FALSE(groups.join(std::vector<size_t>{product->output, output}, product->output));
  EXPECT_FALSE(groups.join(std::vector<size_t>{product->output, output}, output));
  EXPECT_TRUE(groups.is_alone(product->output) && groups.is_alone(output));
}

// Each rule leaves them alone: another step reads them, or the order is another.
TEST(FusionRules, leave_alone_what_something_else_reads) {
  Graph graph;
  const auto matrix = [&](size_t rows, size_t columns) {
    return graph.add_matrix("matrix", Format::kF32, rows, columns);
  };
  const WeightId weight = graph.add_vector("norm", Format::kF32, 64);
  const ValueId x = graph.embed(matrix(100, 64));
  const ValueId h = graph.rms_norm(x, weight, 1e-5F);
  const ValueId gate = graph.matmul(h, matrix(96, 64));
  const ValueId up = graph.matmul(h, matrix(96, 64));
  const ValueId gated = graph.gate(ActivationFunction::kSilu, gate, up);
  const ValueId twice = graph.add(gated, up);  // reads both the gate and one of its products
  const ValueId down = graph.matmul(twice, matrix(64, 96));
  const ValueId y = graph.add(x, down);
  const ValueId again = graph.add(y, x);  // reads the residual behind its sum
  const ValueId last = graph.rms_norm(graph.select_rows(again), weight, 1e-5F);
  graph.set_logits(graph.matmul(last, matrix(100, 64)));
  const Split split = split_evenly(graph, 2);
  const std::vector<Group> groups = make_groups(graph, split, {});
  expect_in_order(graph, groups);
  const auto alone = [&](ValueId value) {
    return std::ranges::count(groups, Group{value, {value}}) == 1;
  };
  EXPECT_TRUE(alone(gated));
  EXPECT_TRUE(alone(twice));
  EXPECT_TRUE(alone(y));
  EXPECT_TRUE(alone(down));
  EXPECT_TRUE(alone(again));
  EXPECT_EQ(std::ranges::count(groups, Group{gate, {gate, up}}), 1);
}

// A mixture whose experts are chosen so.
Graph routed_graph(const Gating& gating, bool has_biases = false) {
  Graph graph;
  const WeightId table = graph.add_matrix("table", Format::kF32, 100, 64);
  const WeightId weight = graph.add_vector("norm", Format::kF32, 64);
  ValueId x = graph.embed(table);
  const ValueId h = graph.rms_norm(x, weight, 1e-5F);
  x = graph.add(x, add_experts(graph, Format::kF32, "", h, gating, has_biases));
  x = graph.rms_norm(graph.select_rows(x), weight, 1e-5F);
  graph.set_logits(graph.matmul(x, table));
  return graph;
}

TEST(GpuGap, is_none_for_the_usual_decoder_and_mixture_however_they_are_fused) {
  for (const bool is_mixture : {false, true}) {
    const Graph graph = make_graph(Format::kQ8_0, is_mixture);
    EXPECT_EQ(find_gpu_gap(graph, {}), std::nullopt);
    EXPECT_EQ(find_gpu_gap(graph, all_rules()), std::nullopt);
    for (const FusionRule& rule : fusion_rules()) {
      EXPECT_EQ(find_gpu_gap(graph, one_rule(rule.fusion)), std::nullopt) << rule.name;
    }
  }
}

TEST(GpuGap, is_none_for_other_gatings_biases_and_functions_of_each_element) {
  for (const Gating& gating :
       {Gating{.function = GatingFunction::kSigmoid}, Gating{.scale = 2},
        Gating{.weighs_inputs = true}, Gating{.group_count = 2, .chosen_groups = 1}}) {
    EXPECT_EQ(find_gpu_gap(routed_graph(gating), {}), std::nullopt);
  }
  EXPECT_EQ(find_gpu_gap(routed_graph({}, /*has_biases=*/true), {}), std::nullopt);

  Graph scaled = routed_graph({});
  scaled.set_logits(
      scaled.scale_rows(ActivationFunction::kSigmoid,
                        scaled.matmul(scaled.producer(scaled.logits()).inputs[0],
                                      scaled.add_matrix("factor", Format::kF32, 1, 64)),
                        scaled.logits()));
  EXPECT_EQ(find_gpu_gap(scaled, {}, /*alone=*/true), std::nullopt);

  Graph graph;
  const WeightId table = graph.add_matrix("table", Format::kF32, 100, 64);
  const WeightId weight = graph.add_vector("norm", Format::kF32, 64);
  ValueId x = graph.layer_norm(graph.embed(table), weight, weight, 1e-5F);
  x = graph.temperature(x, {.scale = 0.1F, .tokens = 8});
  graph.set_logits(graph.soft_cap(graph.matmul(graph.select_rows(x), table), 30));
  EXPECT_EQ(find_gpu_gap(graph, {}), std::nullopt);
}

TEST(GpuGap, names_the_operation_else) {
  Graph groups;
  ValueId x = groups.embed(groups.add_matrix("table", Format::kF32, 100, 64));
  x = groups.matmul(x, groups.add_matrix("router", Format::kF32, 2 * kGpuGroupsMax, 64));
  groups.route(x, 2, {.group_count = 2 * kGpuGroupsMax, .chosen_groups = 3});
  groups.set_logits(x);
  EXPECT_EQ(find_gpu_gap(groups, {}), "routing among so many groups of experts");

  Graph heads;
  x = heads.embed(heads.add_matrix("table", Format::kF32, 100, 64));
  heads.set_logits(heads.head_matmul(x, heads.add_matrix("heads", Format::kF32, 64, 32), 2));
  EXPECT_EQ(find_gpu_gap(heads, {}), "product of heads");
}

// A norm of all of a layer's queries: a GPU alone has them, and of an RMS norm the others get sums.
TEST(GpuGap, may_be_one_of_several_gpus_alone) {
  const auto gap_with = [](bool subtracts_mean, bool alone) {
    Graph graph;
    const WeightId table = graph.add_matrix("table", Format::kF32, 100, 64);
    const WeightId norm = graph.add_vector("norm", Format::kF32, 64);
    const auto matrix = [&](const char* name) {
      return graph.add_matrix(name, Format::kF32, 64, 64);
    };
    const ValueId x = graph.embed(table);
    ValueId q = graph.matmul(x, matrix("q"));
    q = subtracts_mean ? graph.layer_norm(q, norm, kNone, 1e-5F) : graph.rms_norm(q, norm, 1e-5F);
    const ValueId y = graph.attention(0, q, graph.matmul(x, matrix("k")),
                                      graph.matmul(x, matrix("v")), 2, 2, {.scale = 0.25F});
    const ValueId z = graph.add(x, graph.matmul(y, matrix("o")));
    graph.set_logits(graph.matmul(graph.select_rows(z), table));
    return find_gpu_gap(graph, {}, alone);
  };
  EXPECT_EQ(gap_with(false, true), std::nullopt);
  EXPECT_EQ(gap_with(false, false), std::nullopt);
  EXPECT_EQ(gap_with(true, true), std::nullopt);
  EXPECT_EQ(gap_with(true, false), "layer norm of columns that other GPUs compute");
}

TEST(GpuGap, is_none_of_attentions_traits) {
  const auto gap_with = [](const AttentionTraits& traits) {
    return find_gpu_gap(make_graph(Format::kQ8_0, false, traits), {});
  };
  EXPECT_EQ(gap_with({.scale = 0.25F, .window = 40}), std::nullopt);
  EXPECT_EQ(gap_with({.section = 40, .score_cap = 50, .alibi_bias = 8, .sinks = 0}), std::nullopt);
  EXPECT_EQ(gap_with({.ahead = 1}), std::nullopt);
}

}  // namespace
}  // namespace lockstep
