// Rows that a graph keeps beyond its pass: what a model's layers read, against float64, and their
// bits however the work is cut. That they are llama.cpp's predicting_test holds.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "engine/planner/split_graph.h"
#include "tests/engine/runtime/loaded_model.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/reference_model.h"
#include "tests/engine/runtime/reference_walk.h"
#include "tests/engine/runtime/value_or_throw.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

// In units of the spread of a layer's rows.
constexpr double kKeptTolerance = 5e-5;

// Layers one after the other and side by side, with embeddings of their own, with states, without
// parts, with experts and with latent attention.
constexpr std::string_view kKeptFamilies[] = {
    "qwen3next",    "gemma2", "gemma4-e",      "phi2",  "nemotron_h", "gpt-oss",
    "deepseek2-v3", "falcon", "granitehybrid", "olmo2", "lfm2",       "glm4moe"};

std::string path_of(std::string_view name) {
  return fmt::format("{}/tests/fixtures/families/{}.gguf", source_dir(), name);
}

Model model_of(const std::string& path, bool keeps) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  Model model = value_or_throw(build_model({.file = file}));
  EXPECT_EQ(model.layer_inputs.size(), model.layer_count + 1);
  if (!keeps) return model;
  for (const ValueId value : model.layer_inputs) model.graph.keep(value);
  return model;
}

struct KeptAnswer {
  LogitRows logits;
  LogitRows kept;  // of each token all layers'
};

// A prompt in two passes, the second beside another sequence, and generated tokens.
KeptAnswer answer_of(const std::string& path, bool keeps, const LoadedModelOptions& options) {
  LoadedModel model(path, model_of(path, keeps), options);
  const auto tokens = some_tokens(40, 2);
  const std::span<const TokenId> all = tokens;
  auto mine = model.new_sequence(tokens.size());
  auto other = model.new_sequence(tokens.size());
  KeptAnswer answer;
  const auto compute = [&](std::span<const TokenId> before, std::span<const TokenId> some,
                           size_t generated) {
    std::vector<LoadedModel::Piece> pieces;
    if (!before.empty()) pieces.push_back({other, before});
    pieces.push_back({mine, some});
    const LogitRows rows = model.compute(pieces, generated);
    for (size_t token = before.size(); token < rows.size(); ++token) {
      answer.logits.push_back(rows[token]);
      if (keeps) answer.kept.push_back(model.kept_row(token));
    }
  };
  compute({}, all.first(20), 0);
  compute(all.first(9), all.subspan(20, 14), 0);
  for (size_t token = 34; token < all.size(); ++token) compute({}, all.subspan(token, 1), 1);
  return answer;
}

double spread_of(const ReferenceRows& rows) {
  double sum = 0;
  double squares = 0;
  double count = 0;
  for (const std::vector<double>& row : rows) {
    for (const double value : row) {
      sum += value;
      squares += value * value;
      ++count;
    }
  }
  return std::sqrt(squares / count - sum / count * (sum / count));
}

// The rows that each layer reads, in float64.
std::vector<ReferenceRows> reference_of(const std::string& path) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  const Model model = value_or_throw(build_model({.file = file}));
  std::vector<std::vector<float>> weights;
  for (const Weight& weight : model.graph.weights()) weights.push_back(read_weight(file, weight));
  const auto tokens = some_tokens(40, 2);
  const Roundings none;
  ReferenceWalk walk(model.graph, weights, tokens, {}, none, /*draw=*/0);
  walk.run();
  std::vector<ReferenceRows> rows;
  for (const ValueId value : model.layer_inputs) rows.push_back(walk.rows(value));
  return rows;
}

void expect_near(const KeptAnswer& answer, const std::vector<ReferenceRows>& reference) {
  size_t first = 0;
  for (size_t layer = 0; layer < reference.size(); ++layer) {
    const size_t columns = reference[layer].front().size();
    ASSERT_EQ(answer.kept.size(), reference[layer].size());
    double worst = 0;
    for (size_t token = 0; token < answer.kept.size(); ++token) {
      ASSERT_LE(first + columns, answer.kept[token].size());
      for (size_t column = 0; column < columns; ++column) {
        const double value = answer.kept[token][first + column];
        ASSERT_TRUE(std::isfinite(value)) << "layer " << layer << ", token " << token;
        worst = std::max(worst, std::abs(value - reference[layer][token][column]));
      }
    }
    EXPECT_LT(worst / spread_of(reference[layer]), kKeptTolerance) << "layer " << layer;
    first += columns;
  }
}

TEST(KeptRows, are_what_the_layers_read) {
  for (const std::string_view name : kKeptFamilies) {
    for (const Strategy strategy : {Strategy::kGather, Strategy::kReduce}) {
      SCOPED_TRACE(fmt::format("{} {}", name, strategy_name(strategy)));
      const std::string path = path_of(name);
      LoadedModelOptions options{.workers = 2, .shares = {2, 1}, .strategy = strategy};
      options.profile = Profile::kExact;
      expect_near(answer_of(path, /*keeps=*/true, options), reference_of(path));
    }
  }
}

void expect_same(const KeptAnswer& answer, const KeptAnswer& expected) {
  expect_same_bits(answer.logits, expected.logits);
  expect_same_bits(answer.kept, expected.kept);
}

// Keeping them changes no logit; and they have the same bits for any ranks, workers and fusions.
TEST(KeptRows, have_the_same_bits_however_the_work_is_cut) {
  const std::vector<std::vector<double>> splits = {{1}, {1, 1}, {3, 1}, {2, 1, 1}};
  size_t turn = 0;
  for (const std::string_view name : kKeptFamilies) {
    const std::string path = path_of(name);
    const KeptAnswer expected = answer_of(path, /*keeps=*/true, {});
    expect_same_bits(answer_of(path, /*keeps=*/false, {}).logits, expected.logits);
    const Graph& graph = model_of(path, true).graph;
    for (const std::vector<double>& shares : splits) {
      for (const Strategy strategy : {Strategy::kGather, Strategy::kLayers}) {
        if (!split_graph(graph, shares, strategy)) continue;
        SCOPED_TRACE(
            fmt::format("{} {} shares {}", name, strategy_name(strategy), fmt::join(shares, ":")));
        LoadedModelOptions options{.workers = 1 + turn % 3, .shares = shares, .strategy = strategy};
        if (turn++ % 2 == 1) options.without_fusion.add_all();
        expect_same(answer_of(path, /*keeps=*/true, options), expected);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
