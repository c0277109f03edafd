// Models beside the usual decoder on GPUs: the fixtures of all families whose operations they
// have, and graphs made at random of these operations. Simulated GPUs, or those of the machine.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/planner/gpu_gap.h"
#include "tests/engine/runtime/gpu_rank_case.h"
#include "tests/engine/runtime/random_graph.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

const std::string kFixtures = source_dir() + "/tests/fixtures/families/";

class GpuGraphs : public OnTestGpus {};

// A prompt, in one pass and in several, which gives the same bits, and one of which tokens are
// generated.
void expect_near(LoadedModel& loaded, const ReferenceModel& reference, double bound,
                 const std::vector<TokenId>& tokens) {
  const LogitRows prompted = loaded.compute_alone(tokens, 128);
  EXPECT_LE(worst_difference(prompted, reference.logits()), bound);
  const LogitRows by_chunks = loaded.compute_alone(tokens, 4);
  EXPECT_LE(worst_difference(by_chunks, reference.logits()), bound);
  expect_same_bits(prompted, by_chunks);
  EXPECT_LE(worst_difference(generate_after_prompt(loaded, tokens, 8), reference.logits()), bound);
}

// Whether GPUs have such heads.
bool has_readable_heads(const Graph& graph) {
  return std::ranges::all_of(graph.nodes(), [](const GraphNode& node) {
    return node.operation != Operation::kAttention || node.head_dimension % 8 == 0;
  });
}

// One GPU, and two where these compute it as well.
std::vector<std::vector<double>> shares_of(const Graph& graph) {
  if (!has_readable_heads(graph)) return {};
  if (find_gpu_gap(graph, {}, /*alone=*/true)) return {};
  if (find_gpu_gap(graph, {})) return {{1}};
  return {{1}, {1, 1}};
}

LoadedModelOptions options_of(const std::vector<double>& shares) {
  LoadedModelOptions options = on_gpu(KvFormat::kF32);
  options.shares = shares;
  options.strategy = shares.size() > 1 ? Strategy::kReduce : Strategy::kGather;
  return options;
}

TEST_F(GpuGraphs, every_familys_fixture_is_the_model) {
  std::ifstream file(kFixtures + "index.json");
  const auto models = nlohmann::json::parse(file).at("models");
  const auto tokens = some_tokens(11, 3);
  for (const auto& model : models) {
    const std::string path = kFixtures + model.at("file").get<std::string>();
    SCOPED_TRACE(path);
    const size_t context = model.value("context", size_t{0});
    const auto opened = GgufFile::open(path);
    ASSERT_TRUE(opened.has_value());
    const auto built = build_model({.file = *opened, .context_tokens = context});
    ASSERT_TRUE(built.has_value());
    const auto all_shares = shares_of(built->graph);
    if (all_shares.empty()) continue;
    const ReferenceModel reference(path, tokens, context);
    const double bound = reference.bound(gpu_roundings(KvFormat::kF32));
    for (const std::vector<double>& shares : all_shares) {
      SCOPED_TRACE(fmt::format("shares {}", fmt::join(shares, ":")));
      LoadedModelOptions options = options_of(shares);
      options.context_tokens = context;
      LoadedModel loaded(path, options);
      expect_near(loaded, reference, bound, tokens);
    }
  }
}

// Products that every rank computes, a GPU and a node beside it alike.
TEST_F(GpuGraphs, products_that_all_have_are_the_model_beside_nodes) {
  const auto tokens = some_tokens(11, 3);
  for (const std::string name :
       {"gemma4-e.gguf", "deci.gguf", "deci-middle.gguf", "minicpm3.gguf"}) {
    SCOPED_TRACE(name);
    const ReferenceModel reference(kFixtures + name, tokens);
    LoadedModelOptions options = options_of({1, 1});
    options.gpu_count = 1;
    LoadedModel loaded(kFixtures + name, options);
    expect_near(loaded, reference, reference.bound(mixed_roundings(KvFormat::kF32)), tokens);
  }
}

TEST_F(GpuGraphs, random_graphs_are_what_float64_computes) {
  const auto tokens = some_tokens(13, 2);
  const uint64_t count = tried_cases(24);
  size_t of_two = 0;
  for (uint64_t seed = 0; seed < count; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomGraphFile file(seed, &random_gpu_graph);
    const auto all_shares = shares_of(file.model().graph);
    EXPECT_FALSE(all_shares.empty()) << *find_gpu_gap(file.model().graph, {}, /*alone=*/true);
    const ReferenceModel reference(file.path(), file.model(), tokens);
    const double bound = reference.bound(gpu_roundings(KvFormat::kF32));
    for (const std::vector<double>& shares : all_shares) {
      SCOPED_TRACE(fmt::format("shares {}", fmt::join(shares, ":")));
      of_two += shares.size() > 1 ? 1 : 0;
      for (const bool fuses : {true, false}) {
        LoadedModelOptions options = options_of(shares);
        if (!fuses) options.without_fusion.add_all();
        const bool alone = shares.size() == 1;
        if (find_gpu_gap(file.model().graph, options.without_fusion, alone)) continue;
        LoadedModel loaded(file.path(), file.model(), options);
        expect_near(loaded, reference, bound, tokens);
      }
    }
  }
  EXPECT_GT(of_two, count / 4);
}

// A GPU and a node share everything; or the node has a mixture's experts, and the GPU all else.
TEST_F(GpuGraphs, random_graphs_are_what_float64_computes_beside_nodes) {
  const auto tokens = some_tokens(13, 2);
  for (uint64_t seed = 0; seed < tried_cases(24); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomGraphFile file(seed, &random_gpu_graph);
    const Graph graph = file.model().graph;
    if (find_gpu_gap(graph, {})) continue;
    const ReferenceModel reference(file.path(), file.model(), tokens);
    const double bound = reference.bound(mixed_roundings(KvFormat::kF32));
    for (const bool experts_apart : {false, true}) {
      if (experts_apart && graph.most_experts() == 0) continue;
      LoadedModelOptions options = options_of({1, experts_apart ? 0.0 : 1.0});
      if (experts_apart) options.expert_shares = {0, 1};
      options.gpu_count = 1;
      LoadedModel loaded(file.path(), file.model(), options);
      expect_near(loaded, reference, bound, tokens);
    }
  }
}

// Each operation of GPUs, each activation and gating, and each trait of attention.
TEST_F(GpuGraphs, random_graphs_have_all_that_gpus_compute) {
  std::set<Operation> operations;
  std::set<ActivationFunction> activations;
  std::set<GatingFunction> gatings;
  size_t sections = 0;
  size_t caps = 0;
  size_t slopes = 0;
  size_t sinks = 0;
  size_t groups = 0;
  size_t biases = 0;
  size_t shared = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Graph graph = random_gpu_graph(seed);
    for (const GraphNode& node : graph.nodes()) {
      operations.insert(node.operation);
      const bool activates =
          node.operation == Operation::kActivation || node.operation == Operation::kGate;
      if (activates) activations.insert(node.activation.function);
      if (node.operation == Operation::kRoute) gatings.insert(node.gating.function);
      sections += node.attention.section != 0 ? 1 : 0;
      caps += node.attention.score_cap != 0 ? 1 : 0;
      slopes += node.attention.alibi_bias != 0 ? 1 : 0;
      sinks += node.attention.sinks != kNone ? 1 : 0;
      groups += node.gating.group_count > 1 ? 1 : 0;
      biases += node.biases.empty() ? 0 : 1;
      shared += node.experts.size() > 1 && node.experts[0] == node.experts[1] ? 1 : 0;
    }
  }
  const std::set<Operation> lacked = {Operation::kHeadMatmul, Operation::kMeanRows,
                                      Operation::kGivenRows,  Operation::kConvolution,
                                      Operation::kDeltaNet,   Operation::kScan};
  for (const Operation operation : lacked) EXPECT_FALSE(operations.contains(operation));
  EXPECT_GE(operations.size() + lacked.size() + 1, kOperationCount);  // no head joins another
  EXPECT_EQ(activations.size(), kActivationFunctionCount);
  EXPECT_EQ(gatings.size(), 4U);
  for (const size_t number : {sections, caps, slopes, sinks, groups, biases, shared})
    EXPECT_GT(number, 0U);
}

}  // namespace
}  // namespace lockstep
