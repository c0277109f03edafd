// Encoders and rankers on GPUs: the fixtures of all families, and graphs made at random. Simulated
// GPUs, or those of the machine.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/planner/gpu_gap.h"
#include "engine/planner/layer_split.h"
#include "tests/engine/runtime/gpu_rank_case.h"
#include "tests/engine/runtime/quantized_copy.h"
#include "tests/engine/runtime/random_graph.h"
#include "tests/temporary_folder.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

const std::string kEncoderFixtures = source_dir() + "/tests/fixtures/encoders/";

class GpuEncoders : public OnTestGpus {};

nlohmann::json encoder_fixtures() {
  std::ifstream file(kEncoderFixtures + "index.json");
  return nlohmann::json::parse(file).at("models");
}

// Ranks of one split; the first `gpus` are GPUs.
struct EncoderRanks {
  std::vector<double> shares;
  size_t gpus = 0;
};

// One GPU, and where several compute it as well, two and one beside a node.
std::vector<EncoderRanks> encoder_ranks(const Graph& graph) {
  std::vector<EncoderRanks> sets = {{{1}, 1}};
  if (!find_gpu_gap(graph, {})) sets.insert(sets.end(), {{{1, 1}, 2}, {{1, 1}, 1}});
  return sets;
}

LoadedModelOptions encoder_options(const EncoderRanks& set, KvFormat format) {
  LoadedModelOptions options = on_gpu(format);
  options.shares = set.shares;
  options.gpu_count = set.gpus;
  options.strategy = set.shares.size() > 1 ? Strategy::kReduce : Strategy::kGather;
  return options;
}

// Prompted, and as short prompts are computed; by itself and among texts before and behind it.
void expect_encoder(LoadedModel& loaded, const ReferenceModel& reference, double bound,
                    const std::vector<TokenId>& tokens) {
  const auto others = some_tokens(21, 5);
  for (const bool generated : {false, true}) {
    SCOPED_TRACE(generated ? "generated" : "prompted");
    loaded.set_generated(generated);
    const LogitRows rows = loaded.compute_alone(tokens, 128);
    EXPECT_LE(worst_difference(rows, reference.logits()), bound);
    auto before = loaded.new_sequence(21);
    auto mine = loaded.new_sequence(tokens.size());
    auto behind = loaded.new_sequence(1);
    const LogitRows all = loaded.compute(std::vector<LoadedModel::Piece>{
        {before, others}, {mine, tokens}, {behind, std::span(others).first(1)}});
    expect_same_bits(rows, {all.begin() + 21, all.end() - 1});
    loaded.give_back(behind);
    loaded.give_back(mine);
    loaded.give_back(before);
  }
}

TEST_F(GpuEncoders, every_familys_fixture_is_the_model) {
  const test::Folder folder;
  const std::string copy = folder / "copy.gguf";
  const auto long_text = some_tokens(70, 3);
  const auto text = some_tokens(12, 3);
  for (const auto& model : encoder_fixtures()) {
    const std::string path = kEncoderFixtures + model.at("file").get<std::string>();
    write_quantized_copy(path, copy);
    for (const bool quantized : {false, true}) {
      SCOPED_TRACE(fmt::format("{}{}", path, quantized ? " in Q8_0" : ""));
      const std::string& file = quantized ? copy : path;
      const KvFormat format = quantized ? KvFormat::kF16 : KvFormat::kF32;
      const auto opened = GgufFile::open(file);
      ASSERT_TRUE(opened.has_value());
      const auto built = build_model({.file = *opened});
      ASSERT_TRUE(built.has_value());
      EXPECT_EQ(find_gpu_gap(built->graph, {}, /*alone=*/true), std::nullopt);
      const auto expect_on = [&](const EncoderRanks& set, const std::vector<TokenId>& tokens) {
        SCOPED_TRACE(fmt::format("shares {}, {} GPUs", fmt::join(set.shares, ":"), set.gpus));
        const bool mixed = set.gpus < set.shares.size();
        const ReferenceModel reference(file, tokens);
        const double bound =
            reference.bound(mixed ? mixed_roundings(format) : gpu_roundings(format));
        LoadedModel loaded(file, encoder_options(set, format));
        expect_encoder(loaded, reference, bound, tokens);
      };
      if (!quantized) expect_on({{1}, 1}, long_text);  // more keys than a block has
      for (const EncoderRanks& set : encoder_ranks(built->graph)) expect_on(set, text);
    }
  }
}

// The rows that a second text has are those of the same pair on nodes.
TEST_F(GpuEncoders, second_texts_look_their_segment_up) {
  const std::string path = kEncoderFixtures + "bert.gguf";
  const auto tokens = some_tokens(20, 3);
  const auto compute = [&](const LoadedModelOptions& options, size_t second_text) {
    LoadedModel loaded(path, options);
    auto text = loaded.new_sequence(tokens.size());
    text.second_text = second_text;
    return loaded.compute(std::vector<LoadedModel::Piece>{{text, tokens}});
  };
  const LogitRows nodes = compute({}, 8);
  const ReferenceModel reference(path, tokens);
  const double bound = 2 * reference.bound(mixed_roundings(KvFormat::kF32));
  std::vector<std::vector<double>> expected;
  for (const auto& row : nodes) expected.emplace_back(row.begin(), row.end());
  EXPECT_LE(worst_difference(compute(on_gpu(KvFormat::kF32), 8), expected), bound);
  EXPECT_GT(worst_difference(compute(on_gpu(KvFormat::kF32), SIZE_MAX), expected), bound);
}

// Whether GPUs have such heads.
bool has_whole_units(const Graph& graph) {
  return std::ranges::all_of(graph.nodes(), [](const GraphNode& node) {
    return node.operation != Operation::kAttention || node.head_dimension % 8 == 0;
  });
}

TEST_F(GpuEncoders, random_ones_are_what_float64_computes) {
  const auto tokens = some_tokens(20, 2);
  size_t tried = 0;
  for (uint64_t seed = 0; seed < tried_cases(8); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomGraphFile file(seed, &random_gpu_encoder);
    const Graph graph = file.model().graph;
    if (!has_whole_units(graph)) continue;
    EXPECT_EQ(find_gpu_gap(graph, {}, /*alone=*/true), std::nullopt);
    ++tried;
    const ReferenceModel reference(file.path(), file.model(), tokens);
    for (const EncoderRanks& set : encoder_ranks(graph)) {
      SCOPED_TRACE(fmt::format("shares {}, {} GPUs", fmt::join(set.shares, ":"), set.gpus));
      const bool mixed = set.gpus < set.shares.size();
      const double bound =
          reference.bound(mixed ? mixed_roundings(KvFormat::kF32) : gpu_roundings(KvFormat::kF32));
      LoadedModel loaded(file.path(), file.model(), encoder_options(set, KvFormat::kF32));
      expect_encoder(loaded, reference, bound, tokens);
    }
  }
  EXPECT_GT(tried, tried_cases(8) / 2);
}

// GPUs with whole layers each give the bits of one alone.
TEST_F(GpuEncoders, layers_by_rank_have_the_bits_of_one_gpu) {
  const auto tokens = some_tokens(70, 3);
  for (const std::string name : {"bert.gguf", "modern-bert-rank-mean.gguf"}) {
    SCOPED_TRACE(name);
    LoadedModel alone(kEncoderFixtures + name, on_gpu(KvFormat::kF32));
    const auto borders = find_layer_borders(alone.model().graph);
    ASSERT_FALSE(borders.empty());
    LoadedModelOptions options = on_gpu(KvFormat::kF32);
    options.strategy = Strategy::kLayers;
    options.borders = {borders[borders.size() / 2]};
    LoadedModel layers(kEncoderFixtures + name, options);
    expect_same_bits(alone.compute_alone(tokens, 128), layers.compute_alone(tokens, 128));
  }
}

}  // namespace
}  // namespace lockstep
