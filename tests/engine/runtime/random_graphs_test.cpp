// Graphs made at random: what they compute is what float64 does, on every instruction set; and no
// bit of it depends on ranks, shares, workers, chunks, neighbours or fusion rules.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "engine/graph/kv_layout.h"
#include "engine/kernels/kernel_choice.h"
#include "engine/planner/layer_split.h"
#include "engine/planner/split_graph.h"
#include "engine/tensor/formats.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_graph.h"
#include "tests/engine/runtime/reference_model.h"
#include "tests/paths.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

// LOCKSTEP_GRAPHS: how many graphs, and from which seed on ("1000" or "1000@77").
struct Seeds {
  uint64_t first = 0;
  uint64_t count = 24;
};
Seeds wanted_seeds() {
  Seeds seeds;
  const char* const text = std::getenv("LOCKSTEP_GRAPHS");
  if (text == nullptr) return seeds;
  char* end = nullptr;
  seeds.count = std::strtoull(text, &end, 10);
  if (*end == '@') seeds.first = std::strtoull(end + 1, nullptr, 10);
  return seeds;
}

template <typename Check>
void for_each_graph(Check check) {
  const auto [first, count] = wanted_seeds();
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomGraphFile file(seed);
    check(file);
    if (testing::Test::HasFatalFailure()) return;
  }
}

const std::vector<std::vector<double>> kShares = {{1}, {1, 1}, {3, 1}, {2, 1, 1}, {1, 1, 1, 1}};

TEST(RandomGraphs, have_every_operation_and_every_activation) {
  std::set<Operation> operations;
  std::set<ActivationFunction> activations;
  size_t own_norms = 0;
  size_t without_mean = 0;
  size_t weighed_inputs = 0;
  size_t given_rows = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Graph graph = random_graph(seed);
    for (const GraphNode& node : graph.nodes()) {
      if (seed < Seeds().count) {
        own_norms += has_own_norms(graph, node) ? 1 : 0;
        without_mean += node.subtracts_mean ? 1 : 0;
        weighed_inputs += node.gating.weighs_inputs ? 1 : 0;
        given_rows += node.operation == Operation::kGivenRows ? 1 : 0;
      }
      operations.insert(node.operation);
      const bool has_activation =
          node.operation == Operation::kActivation || node.operation == Operation::kGate;
      if (has_activation) activations.insert(node.activation.function);
    }
    const Graph encoder = random_encoder(seed);
    for (const GraphNode& node : encoder.nodes()) operations.insert(node.operation);
  }
  EXPECT_EQ(operations.size(), kOperationCount);
  EXPECT_EQ(activations.size(), kActivationFunctionCount);
  EXPECT_GT(own_norms, 0U);
  EXPECT_GT(without_mean, 0U);
  EXPECT_GT(weighed_inputs, 0U);
  EXPECT_GT(given_rows, 1U);
}

TEST(RandomGraphs, have_matrices_of_every_format_and_with_scales) {
  std::set<Format> formats;
  size_t scales = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Graph graph = random_graph(seed);
    for (const Weight& weight : graph.weights()) {
      if (!weight.is_matrix) continue;
      formats.insert(weight.format);
      scales += weight.scale != 1 && seed < Seeds().count ? 1 : 0;
    }
  }
  EXPECT_EQ(formats.size(), kFormatCount);
  EXPECT_GT(scales, Seeds().count);
}

// Whether the values are what the keys are made of.
bool reads_key_product(const Graph& graph, const GraphNode& attention) {
  if (attention.stored_by != kNone || has_values_in_keys(attention)) return false;
  ValueId key = attention.inputs[1];
  while (key != attention.inputs[2] && graph.producer(key).operation != Operation::kMatmul) {
    key = graph.producer(key).inputs[0];
  }
  return key == attention.inputs[2];
}

TEST(RandomGraphs, have_every_trait_of_attention) {
  size_t sections = 0;
  size_t caps = 0;
  size_t slopes = 0;
  size_t sinks = 0;
  size_t large_groups = 0;
  size_t other_values = 0;  // of another dimension than keys
  size_t earlier_keys = 0;  // that another layer has stored
  size_t values_of_keys = 0;
  size_t values_in_keys = 0;  // stored once
  for (uint64_t seed = 0; seed < Seeds().count; ++seed) {
    const Graph graph = random_graph(seed);
    for (const GraphNode& node : graph.nodes()) {
      sections += node.attention.section != 0 ? 1 : 0;
      caps += node.attention.score_cap != 0 ? 1 : 0;
      slopes += node.attention.alibi_bias != 0 ? 1 : 0;
      sinks += node.attention.sinks != kNone ? 1 : 0;
      const bool attends = node.operation == Operation::kAttention;
      large_groups += attends && node.head_count > kMaxQueryGroup * node.kv_head_count ? 1 : 0;
      other_values += attends && node.value_dimension != node.head_dimension ? 1 : 0;
      earlier_keys += attends && node.stored_by != kNone ? 1 : 0;
      values_of_keys += attends && reads_key_product(graph, node) ? 1 : 0;
      values_in_keys += attends && has_values_in_keys(node) ? 1 : 0;
    }
  }
  for (const size_t count : {sections, caps, slopes, sinks, large_groups, other_values,
                             earlier_keys, values_of_keys, values_in_keys}) {
    EXPECT_GT(count, 1U);
  }
}

TEST(RandomGraphs, have_every_form_of_delta_nets) {
  size_t tiled = 0;
  size_t grouped = 0;
  size_t shared_keys = 0;  // key heads of several value heads
  size_t sliced = 0;       // factors of one product
  size_t gated = 0;
  size_t row_decays = 0;  // each row of a state has its own
  size_t sliced_decays = 0;
  size_t early_gates = 0;  // computed before what they gate
  for (uint64_t seed = 0; seed < Seeds().count; ++seed) {
    const Graph graph = random_graph(seed);
    for (const GraphNode& node : graph.nodes()) {
      if (node.operation == Operation::kGate) {
        const GraphNode& normed = graph.producer(node.inputs[1]);
        const bool gates_net = normed.operation == Operation::kHeadNorm &&
                               graph.producer(normed.inputs[0]).operation == Operation::kDeltaNet;
        gated += gates_net ? 1 : 0;
        early_gates += gates_net && node.inputs[0] < normed.inputs[0] ? 1 : 0;
      }
      if (node.operation != Operation::kDeltaNet) continue;
      const bool is_sliced = graph.producer(node.inputs[3]).operation == Operation::kSliceHeads;
      row_decays += node.decay_count > 1 ? 1 : 0;
      sliced_decays += node.decay_count > 1 && is_sliced ? 1 : 0;
      (node.delta.is_tiled ? tiled : grouped) += 1;
      shared_keys += node.delta.value_heads > node.delta.key_heads ? 1 : 0;
      sliced += is_sliced ? 1 : 0;
    }
  }
  for (const size_t count :
       {tiled, grouped, shared_keys, sliced, gated, row_decays, sliced_decays, early_gates}) {
    EXPECT_GT(count, 1U);
  }
}

TEST(RandomGraphs, have_every_form_of_scans) {
  size_t alone = 0;  // all heads are of one group
  size_t grouped = 0;
  size_t narrow = 0;   // heads that are no whole chunks
  size_t columns = 0;  // heads of one column, which decay as a whole
  size_t apart = 0;    // whose rows decay by themselves
  for (uint64_t seed = 0; seed < Seeds().count; ++seed) {
    const Graph graph = random_graph(seed);
    for (const GraphNode& node : graph.nodes()) {
      if (node.operation != Operation::kScan) continue;
      if (node.value_dimension == 1) {
        (node.decay_count == 1 ? columns : apart) += 1;
        continue;
      }
      (node.delta.key_heads == 1 ? alone : grouped) += 1;
      narrow += node.value_dimension % kChunkColumns != 0 ? 1 : 0;
    }
  }
  for (const size_t count : {alone, grouped, narrow, columns, apart}) EXPECT_GT(count, 1U);
}

TEST(RandomGraphs, are_what_float64_computes_on_every_instruction_set) {
  for_each_graph(expect_what_float64_computes);
}

// In chunks, token by token, and among neighbours.
void expect_in_any_pieces(LoadedModel& model, const LogitRows& expected,
                          std::span<const TokenId> tokens) {
  expect_same_bits(expected, model.compute_alone(tokens, 128));
  expect_same_bits(expected, model.compute_alone(tokens, 7));
  expect_same_bits(expected, model.compute_alone(tokens, 1));
  const auto others = some_tokens(33, 4);
  auto before = model.new_sequence(33);
  auto mine = model.new_sequence(tokens.size());
  const LogitRows all =
      model.compute(std::vector<LoadedModel::Piece>{{before, others}, {mine, tokens}});
  expect_same_bits(expected, LogitRows(all.begin() + 33, all.end()));
}

std::vector<FusionSet> fusion_sets(uint64_t draw) {
  std::vector<FusionSet> sets(3);
  sets[1].add_all();
  for (const FusionRule& rule : fusion_rules()) {
    if ((draw >> static_cast<unsigned>(rule.fusion)) % 2 == 1) sets[2].add(rule.fusion);
  }
  return sets;
}

TEST(RandomGraphs, have_the_same_bits_for_any_ranks_shares_workers_pieces_and_fusions) {
  const auto tokens = some_tokens(20, 2);
  uint64_t draw = 0x9e3779b97f4a7c15U;
  for_each_graph([&](const RandomGraphFile& file) {
    const LogitRows expected =
        LoadedModel(file.path(), file.model(), {}).compute_alone(tokens, 128);
    for (const std::vector<double>& shares : kShares) {
      draw = draw * 6364136223846793005U + 1442695040888963407U;
      for (const FusionSet& without : fusion_sets(draw >> 40U)) {
        SCOPED_TRACE(fmt::format("shares {}", fmt::join(shares, ":")));
        LoadedModelOptions options{.workers = 1 + draw % 3, .shares = shares};
        options.without_fusion = without;
        LoadedModel model(file.path(), file.model(), options);
        expect_in_any_pieces(model, expected, tokens);
      }
    }
  });
}

// Whether layers have different windows.
bool has_groups(const Graph& graph) {
  return group_kv_layers(graph).size() > 1;
}

// In short passes the pages behind a window are written over while other layers keep theirs; in
// long ones none is.
TEST(RandomGraphs, have_the_same_bits_without_the_pages_behind_their_windows) {
  const auto tokens = some_tokens(400, 6);
  size_t tried = 0;
  for (uint64_t seed = 0; tried < tried_cases(4); ++seed) {
    if (!has_groups(random_graph(seed))) continue;
    ++tried;
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomGraphFile file(seed);
    const LogitRows expected =
        LoadedModel(file.path(), file.model(), {.batch_tokens = 400}).compute_alone(tokens, 400);
    for (const std::vector<double>& shares : {std::vector<double>{1}, {2, 1, 1}}) {
      for (const size_t chunk : {1U, 20U}) {
        LoadedModel model(file.path(), file.model(),
                          {.workers = 2, .shares = shares, .batch_tokens = 20});
        expect_same_bits(expected, model.compute_alone(tokens, chunk));
      }
    }
  }
}

// Tokens that see several chunks of keys, by themselves, which workers then share, and among
// others.
TEST(RandomGraphs, have_the_same_bits_for_long_texts_in_any_pieces) {
  const auto tokens = some_tokens(kAttentionChunkTokens + 40, 6);
  for_each_graph([&](const RandomGraphFile& file) {
    const LogitRows expected =
        LoadedModel(file.path(), file.model(), {}).compute_alone(tokens, 128);
    LoadedModel model(file.path(), file.model(), {.workers = 3, .shares = {2, 1}});
    auto sequence = model.new_sequence(tokens.size());
    const std::span<const TokenId> all = tokens;
    size_t done = 0;
    for (const size_t count : {100U, 100U, 60U, 1U, 1U, 7U, 1U, 26U}) {
      const auto rows =
          model.compute(std::vector<LoadedModel::Piece>{{sequence, all.subspan(done, count)}});
      const auto begin = expected.begin() + static_cast<ptrdiff_t>(done);
      expect_same_bits(LogitRows(begin, begin + static_cast<ptrdiff_t>(count)), rows);
      done += count;
    }
  });
}

// Layers of all kinds, whole, on a rank more than there are borders.
TEST(RandomGraphs, have_the_same_bits_where_ranks_have_whole_layers) {
  size_t several = 0;
  for_each_graph([&](const RandomGraphFile& file) {
    const auto tokens = some_tokens(20, 2);
    LoadedModelOptions options{.workers = 2};
    const LogitRows expected =
        LoadedModel(file.path(), file.model(), options).compute_alone(tokens, 7);
    options.borders = find_layer_borders(file.model().graph);
    if (options.borders.empty()) return;
    ++several;
    for (const FusionSet& without : fusion_sets(0x155)) {
      options.without_fusion = without;
      LoadedModel model(file.path(), file.model(), options);
      expect_same_bits(expected, model.compute_alone(tokens, 7));
    }
  });
  EXPECT_GT(several, 0U);
}

// Every rank has whole blocks of each vector and of each matrix that is cut by columns.
void expect_whole_blocks(const Graph& graph, const Split& split) {
  for (WeightId id = 0; id < split.weights.size(); ++id) {
    const Weight& weight = graph.weights()[id];
    const WeightSplit& each = split.weights[id];
    if (each.kind != SplitKind::kSliced || !each.by_columns) continue;
    const size_t block = traits(weight.format).block_elements;
    for (const Range& range : each.ranges) {
      EXPECT_EQ(range.begin % block, 0U) << weight.name;
      EXPECT_EQ(range.end % block, 0U) << weight.name;
    }
  }
}

TEST(RandomGraphs, are_cut_at_whole_blocks) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Graph graph = random_graph(seed);
    for (const std::vector<double>& shares : kShares) {
      for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
        SCOPED_TRACE(strategy_name(strategy));
        expect_whole_blocks(graph, split_graph(graph, shares, strategy).value());
      }
    }
  }
}

// The ranks' sums give what float64 does, and fusions change no bit of it.
void expect_sums_near(const RandomGraphFile& file, LoadedModelOptions options) {
  const auto tokens = some_tokens(20, 2);
  const KernelTable& table = *choose_kernel_table(kernel_row()).value();
  const ReferenceModel reference(file.path(), file.model(), tokens);
  const double bound = reference.bound(roundings_of(table, Profile::kFast, KvFormat::kF32));
  options.strategy = Strategy::kReduce;
  LogitRows fused;
  for (const FusionSet& without : fusion_sets(0x155)) {
    options.without_fusion = without;
    LoadedModel model(file.path(), file.model(), options);
    const LogitRows rows = model.compute_alone(tokens, 7);
    if (fused.empty()) fused = rows;
    expect_same_bits(fused, rows);
    EXPECT_LE(worst_difference(rows, reference.logits()), bound);
  }
}

TEST(RandomGraphs, have_the_same_bits_without_fusions_and_are_the_model_where_ranks_sum) {
  for_each_graph([&](const RandomGraphFile& file) {
    for (const std::vector<double>& shares : kShares) {
      SCOPED_TRACE(fmt::format("shares {}", fmt::join(shares, ":")));
      expect_sums_near(file, {.shares = shares});
    }
  });
}

// The experts of every layer, or of the first one alone.
TEST(RandomGraphs, are_the_model_where_some_ranks_have_experts_alone_or_none) {
  for_each_graph([&](const RandomGraphFile& file) {
    if (file.model().graph.routers().empty()) return;
    for (const size_t apart_layers : {size_t{1}, kNone}) {
      SCOPED_TRACE(fmt::format("{} layers", apart_layers));
      expect_sums_near(file,
                       {.shares = {1, 0}, .expert_shares = {0, 1}, .apart_layers = apart_layers});
      expect_sums_near(
          file, {.shares = {1, 0, 2}, .expert_shares = {0, 3, 1}, .apart_layers = apart_layers});
    }
  });
}

}  // namespace
}  // namespace lockstep
