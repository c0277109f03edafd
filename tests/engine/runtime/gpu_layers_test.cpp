// Ranks on GPUs that have whole layers each: the bits are those of one GPU, whatever the borders
// are and whichever way residuals take. Simulated GPUs, or those of the machine.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/planner/layer_split.h"
#include "tests/engine/runtime/gpu_rank_case.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/value_or_throw.h"

namespace lockstep {
namespace {

class GpuLayers : public OnTestGpus {};

struct Answer {
  LogitRows rows;
  LogitRows hidden;
  std::vector<TokenId> likeliest;
};

// A prompt in two passes, the second beside a generated token of another sequence, and generated
// tokens of both.
Answer answer_of(const std::string& path, const LoadedModelOptions& options) {
  LoadedModel model(path, options);
  const auto tokens = some_tokens(23, 2);
  const std::span<const TokenId> all = tokens;
  auto first = model.new_sequence(tokens.size());
  auto second = model.new_sequence(tokens.size());
  Answer answer;
  const auto compute = [&](const std::vector<LoadedModel::Piece>& pieces, size_t generated) {
    LogitRows rows = model.compute(pieces, generated);
    for (size_t token = 0; token < rows.size(); ++token) {
      answer.rows.push_back(std::move(rows[token]));
      answer.hidden.push_back(model.hidden_row(token));
      const LogitRow row = model.logit_row(token);
      answer.likeliest.push_back(row.candidates()->tokens[0]);
    }
  };
  compute({{second, all.first(3)}, {first, all.first(9)}}, 0);
  compute({{second, all.subspan(3, 1)}, {first, all.subspan(9, 11)}}, 1);
  for (size_t token = 20; token < tokens.size(); ++token) {
    compute({{first, all.subspan(token, 1)}, {second, all.subspan(token - 16, 1)}}, 2);
  }
  return answer;
}

void expect_same(const Answer& expected, const Answer& answer) {
  expect_same_bits(expected.rows, answer.rows);
  expect_same_bits(expected.hidden, answer.hidden);
  EXPECT_EQ(expected.likeliest, answer.likeliest);
}

// GPUs that reach one another's memory, and the same as though they did not.
std::vector<GpuPlatform> near_and_apart() {
  std::vector<GpuPlatform> platforms(2, test_gpus());
  platforms.back().peer_access = false;
  return platforms;
}

std::vector<LayerBorder> borders_of(const std::string& path) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  return find_layer_borders(value_or_throw(build_model({.file = file})).graph);
}

// The first border is behind the embedding, the last before the last norm.
TEST_F(GpuLayers, have_the_bits_of_one_gpu_for_any_border) {
  const RandomModel model(Format::kQ4_0, Format::kQ8_0, /*seed=*/71);
  const Answer expected = answer_of(model.path(), on_gpu());
  const std::vector<LayerBorder> borders = borders_of(model.path());
  ASSERT_EQ(borders.size(), 5U);
  for (const LayerBorder& border : borders) {
    SCOPED_TRACE(border.node);
    LoadedModelOptions options = on_gpu();
    options.borders = {border};
    expect_same(expected, answer_of(model.path(), options));
  }
}

TEST_F(GpuLayers, have_the_bits_of_one_gpu_on_several_and_through_the_host) {
  const std::vector<GpuPlatform> platforms = near_and_apart();
  const RandomModel dense(Format::kQ4_K, Format::kQ6_K, /*seed=*/72);
  const RandomModel mixture(Format::kQ8_0, Format::kQ4_0, /*seed=*/73, {.count = 5, .used = 2});
  for (const std::string& path : {dense.path(), mixture.path()}) {
    const Answer expected = answer_of(path, on_gpu());
    for (const GpuPlatform& platform : platforms) {
      SCOPED_TRACE(fmt::format("{} peers {}", path, platform.peer_access));
      LoadedModelOptions options = on_gpu();
      options.gpus = &platform;
      options.strategy = Strategy::kLayers;
      options.shares = {1, 1, 1};
      expect_same(expected, answer_of(path, options));
    }
  }
}

// Generated tokens and the ends of prompts are in several chunks, more than borders have space for.
TEST_F(GpuLayers, have_the_bits_of_one_gpu_in_any_chunks) {
  const RandomModel model(Format::kQ4_0, Format::kQ8_0, /*seed=*/75);
  const Answer expected = answer_of(model.path(), on_gpu());
  for (const std::vector<double>& shares : {std::vector<double>{1}, {2, 1}, {1, 1, 1}}) {
    for (const size_t chunk : {1U, 2U, 5U, 12U}) {
      SCOPED_TRACE(fmt::format("{} GPUs, chunks of {}", shares.size(), chunk));
      LoadedModelOptions options = on_gpu();
      options.strategy = Strategy::kLayers;
      options.shares = shares;
      options.chunk_tokens = chunk;
      expect_same(expected, answer_of(model.path(), options));
    }
  }
}

// The GPU with the last layers has all logits, and finds the likeliest.
TEST_F(GpuLayers, leave_the_likeliest_logits_at_hand) {
  const std::string model = kFolder + "llama-gqa-f16.gguf";
  LoadedModelOptions options = on_gpu();
  options.strategy = Strategy::kLayers;
  options.shares = {1, 1};
  const std::vector<GpuPlatform> platforms = near_and_apart();
  for (const GpuPlatform& platform : platforms) {
    options.gpus = &platform;
    LoadedModel loaded(model, options);
    loaded.compute_alone(some_tokens(3, 9), 3);
    EXPECT_NE(loaded.logit_row(0).candidates(), nullptr);
    EXPECT_GT(gpu_executor(loaded.ranks()[1]).recording_count(), 0U);
  }
}

}  // namespace
}  // namespace lockstep
