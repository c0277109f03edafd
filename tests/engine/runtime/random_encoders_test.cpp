// Encoders made at random, whose tokens see those behind them, too: what they compute is what
// float64 does, on every instruction set; and no bit of it depends on ranks, shares, workers,
// neighbours or fusion rules.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_graph.h"
#include "tests/engine/runtime/reference_model.h"
#include "tests/paths.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

constexpr uint64_t kSeeds = 16;
constexpr uint64_t kComputedSeeds = 8;  // the others show what is drawn

template <typename Check>
void for_each_encoder(Check check) {
  for (uint64_t seed = 0; seed < kComputedSeeds; ++seed) {
    if (!is_tried_case(seed)) continue;
    SCOPED_TRACE(fmt::format("seed {}", seed));
    check(RandomGraphFile(seed, &random_encoder));
    if (testing::Test::HasFatalFailure()) return;
  }
}

const std::vector<std::vector<double>> kEncoderShares = {
    {1}, {1, 1}, {3, 1}, {2, 1, 1}, {1, 1, 1, 1}};

TEST(RandomEncoders, have_every_index_and_every_end) {
  std::set<EmbedIndex> indices;
  std::set<Operation> ends;
  size_t some_ahead = 0;
  size_t slopes = 0;
  size_t means = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Graph graph = random_encoder(seed);
    EXPECT_TRUE(graph.sees_ahead());
    for (const GraphNode& node : graph.nodes()) {
      if (node.operation == Operation::kEmbed) indices.insert(node.index);
      means += node.operation == Operation::kMeanRows && seed < kComputedSeeds ? 1 : 0;
      if (node.operation != Operation::kAttention) continue;
      some_ahead += node.attention.ahead != kAllAhead ? 1 : 0;
      slopes += node.attention.alibi_bias != 0 ? 1 : 0;
    }
    ends.insert(graph.producer(graph.logits()).operation);
  }
  EXPECT_EQ(indices.size(), 3U);
  EXPECT_GE(ends.size(), 3U);
  EXPECT_GT(some_ahead, 1U);
  EXPECT_GT(slopes, 1U);
  EXPECT_GT(means, 1U);
}

TEST(RandomEncoders, are_what_float64_computes_on_every_instruction_set) {
  for_each_encoder(expect_what_float64_computes);
}

// Among texts of one token and of many, before it and behind it.
void expect_among_neighbours(LoadedModel& model, const LogitRows& expected,
                             std::span<const TokenId> tokens) {
  const auto one = some_tokens(1, 3);
  const auto many = some_tokens(33, 4);
  auto first = model.new_sequence(1);
  auto second = model.new_sequence(33);
  auto mine = model.new_sequence(tokens.size());
  auto last = model.new_sequence(33);
  const LogitRows all = model.compute(
      std::vector<LoadedModel::Piece>{{first, one}, {second, many}, {mine, tokens}, {last, many}});
  const auto begin = all.begin() + 34;
  expect_same_bits(expected, {begin, begin + static_cast<ptrdiff_t>(tokens.size())});
}

TEST(RandomEncoders, have_the_same_bits_for_any_ranks_shares_workers_neighbours_and_fusions) {
  const auto tokens = some_tokens(20, 2);
  FusionSet all;
  all.add_all();
  uint64_t draw = 1;
  for_each_encoder([&](const RandomGraphFile& file) {
    const LogitRows expected =
        LoadedModel(file.path(), file.model(), {}).compute_alone(tokens, 128);
    for (const std::vector<double>& shares : kEncoderShares) {
      for (const FusionSet& without : {FusionSet(), all}) {
        SCOPED_TRACE(fmt::format("shares {}", fmt::join(shares, ":")));
        LoadedModelOptions options{.workers = 1 + ++draw % 3, .shares = shares};
        options.without_fusion = without;
        LoadedModel model(file.path(), file.model(), options);
        expect_same_bits(expected, model.compute_alone(tokens, 128));
        expect_among_neighbours(model, expected, tokens);
      }
    }
  });
}

// Tokens see keys of chunks before and behind their own.
TEST(RandomEncoders, are_the_same_model_for_long_texts) {
  const auto tokens = some_tokens(2 * kAttentionChunkTokens + 5, 6);
  for (const uint64_t seed : {0U, 3U}) {
    if (!is_tried_case(seed)) continue;
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomGraphFile file(seed, &random_encoder);
    const ReferenceModel reference(file.path(), file.model(), tokens);
    const KernelTable& table = *choose_kernel_table(kernel_row()).value();
    LoadedModel alone(file.path(), file.model(), {.batch_tokens = 520});
    const LogitRows expected = alone.compute_alone(tokens, 520);
    expect_near(expected, reference, roundings_of(table, Profile::kFast, KvFormat::kF32));
    LoadedModel model(file.path(), file.model(),
                      {.workers = 3, .shares = {2, 1}, .batch_tokens = 520});
    expect_same_bits(expected, model.compute_alone(tokens, 520));
  }
}

TEST(RandomEncoders, are_the_model_where_ranks_sum) {
  const auto tokens = some_tokens(20, 2);
  const KernelTable& table = *choose_kernel_table(kernel_row()).value();
  for_each_encoder([&](const RandomGraphFile& file) {
    const ReferenceModel reference(file.path(), file.model(), tokens);
    const double bound = reference.bound(roundings_of(table, Profile::kFast, KvFormat::kF32));
    for (const std::vector<double>& shares : kEncoderShares) {
      SCOPED_TRACE(fmt::format("shares {}", fmt::join(shares, ":")));
      LoadedModel model(file.path(), file.model(),
                        {.shares = shares, .strategy = Strategy::kReduce});
      EXPECT_LE(worst_difference(model.compute_alone(tokens, 128), reference.logits()), bound);
    }
  });
}

}  // namespace
}  // namespace lockstep
