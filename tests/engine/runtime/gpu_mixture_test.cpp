// Mixtures of experts on ranks that are GPUs, alone and beside processors: simulated ones, or, in a
// build with CUDA, those of the machine.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/engine/runtime/gpu_rank_case.h"
#include "tests/engine/runtime/random_model.h"

namespace lockstep {
namespace {

class GpuMixture : public OnTestGpus {};

// Experts' gates in one format and in several, on one GPU and on two. Where a token goes to all
// experts, no rounding decides which it goes to.
TEST_F(GpuMixture, computes_mixtures_of_experts) {
  const auto tokens = some_tokens(10, 9);
  for (const auto& [format, others] :
       {std::pair(Format::kQ4_0, Format::kQ8_0), std::pair(Format::kF32, Format::kQ4_0)}) {
    SCOPED_TRACE(traits(format).name);
    const RandomModel model(format, others, /*seed=*/48, {.count = 3, .used = 3});
    const ReferenceModel reference(model.path(), tokens);
    const double bound = reference.bound(gpu_roundings(KvFormat::kF16));
    for (const std::vector<double>& shares : {std::vector<double>{1}, {1, 1}}) {
      SCOPED_TRACE(shares.size());
      LoadedModelOptions options = on_gpu();
      options.shares = shares;
      options.strategy = shares.size() > 1 ? Strategy::kReduce : Strategy::kGather;
      LoadedModel loaded(model.path(), options);
      const LogitRows rows = loaded.compute_alone(tokens, 128);
      EXPECT_LE(worst_difference(rows, reference.logits()), bound);
      expect_same_bits(rows, loaded.compute_alone(tokens, 4));
      const LogitRows generated = generate_after_prompt(loaded, tokens, 7);
      EXPECT_LE(worst_difference(generated, reference.logits()), bound);
      LoadedModel again(model.path(), options);
      expect_same_bits(generated, generate_after_prompt(again, tokens, 7));
    }
  }
}

TEST_F(GpuMixture, experts_give_a_token_the_same_bits_whoever_is_beside_it) {
  const RandomModel model(Format::kQ4_K, Format::kQ6_K, /*seed=*/49, {.count = 40, .used = 3});
  const auto first = some_tokens(5, 1);
  const auto second = some_tokens(30, 40);
  const std::vector<TokenId> next = {17};
  LoadedModel loaded(model.path(), on_gpu());
  const LogitRows alone = loaded.compute_alone(first, 128);
  LoadedModel::Sequence a = loaded.new_sequence(first.size() + 1);
  LoadedModel::Sequence b = loaded.new_sequence(second.size());
  const std::vector<LoadedModel::Piece> prompts = {{b, second}, {a, first}};
  const LogitRows together = loaded.compute(prompts);
  expect_same_bits(alone, {together.begin() + 30, together.end()});
  LoadedModel::Sequence a_again = a;
  LoadedModel::Sequence c = loaded.new_sequence(second.size());
  const std::vector<LoadedModel::Piece> one = {{a, next}};
  const LogitRows generated = loaded.compute(one, 1);
  const std::vector<LoadedModel::Piece> mixed = {{a_again, next}, {c, second}};
  expect_same_bits(generated, {loaded.compute(mixed, 1).front()});
}

// Experts of 3 and of 6 blocks of 256 columns, cut at whole blocks: over GPUs of which the second
// may have none of them, and over a GPU's one layer and the nodes' other, up to three nodes.
TEST_F(GpuMixture, computes_experts_of_few_blocks_on_any_ranks) {
  const auto tokens = some_tokens(6, 2);
  struct SplitCase {
    std::vector<double> shares;
    std::vector<double> expert_shares;
    size_t gpu_count = 0;
  };
  const std::vector<SplitCase> sets = {{{1}, {1}, 1},
                                       {{1, 1}, {1, 1}, 2},
                                       {{1, 1, 1}, {1, 1, 1}, 3},
                                       {{1, 0}, {0, 1}, 1},
                                       {{1, 0, 0, 0}, {0, 1, 1, 1}, 1},
                                       {{1, 1, 0, 0}, {0, 0, 2, 1}, 2}};
  for (const uint32_t feed_forward : {768U, 1536U}) {
    const RandomModel model(Format::kQ4_K, Format::kQ6_K, /*seed=*/51,
                            {.count = 3, .used = 3, .feed_forward = feed_forward});
    const ReferenceModel reference(model.path(), tokens);
    const double on_gpus = reference.bound(gpu_roundings(KvFormat::kF16));
    const double mixed = reference.bound(mixed_roundings());
    for (const auto& [shares, expert_shares, gpu_count] : sets) {
      SCOPED_TRACE(fmt::format("{} columns, shares {}, experts {}", feed_forward,
                               fmt::join(shares, ":"), fmt::join(expert_shares, ":")));
      LoadedModelOptions options = on_gpu();
      options.shares = shares;
      options.expert_shares = expert_shares;
      options.gpu_count = gpu_count;
      options.strategy = shares.size() > 1 ? Strategy::kReduce : Strategy::kGather;
      const bool is_mixed = gpu_count < shares.size();
      if (is_mixed) options.apart_layers = 1;
      LoadedModel loaded(model.path(), options);
      const double bound = is_mixed ? mixed : on_gpus;
      const LogitRows rows = loaded.compute_alone(tokens, 128);
      EXPECT_LE(worst_difference(rows, reference.logits()), bound);
      expect_same_bits(rows, loaded.compute_alone(tokens, 3));
      EXPECT_LE(worst_difference(generate_after_prompt(loaded, tokens, 5), reference.logits()),
                bound);
      // Every rank has an expert's blocks in some layer or all else.
      for (size_t rank = 0; rank < shares.size(); ++rank) {
        EXPECT_GT(loaded.ranks()[rank].plan().weight_bytes, 0U);
      }
    }
  }
}

// The GPU has all but the experts, of which it computes nothing, or a part of it, and two ranks of
// processors those.
TEST_F(GpuMixture, leaves_experts_to_processors) {
  const std::string model = kFolder + "qwen3moe-gqa-f16.gguf";
  const auto tokens = some_tokens(15, 9);
  LoadedModelOptions options = on_gpu();
  options.strategy = Strategy::kReduce;
  options.workers = 2;
  options.gpu_count = 1;
  options.expert_shares = {0, 2, 1};
  const ReferenceModel reference(model, tokens);
  Roundings roundings = mixed_roundings();
  for (const auto& [bf16_sums, node_share] :
       {std::pair(false, 0.0), std::pair(true, 0.0), std::pair(false, 1.0)}) {
    options.bf16_sums = bf16_sums;
    options.shares = {2, node_share, node_share};
    roundings.bf16_sums = bf16_sums;
    roundings.ranks = options.shares.size();
    const double bound = reference.bound(roundings);
    LoadedModel by_kind(model, options);
    EXPECT_EQ(by_kind.ranks()[1].plan().kv.most_heads() > 0, node_share > 0);
    const LogitRows rows = by_kind.compute_alone(tokens, 128);
    EXPECT_LE(worst_difference(rows, reference.logits()), bound);
    expect_same_bits(rows, by_kind.compute_alone(tokens, 5));
    const LogitRows generated = generate_after_prompt(by_kind, tokens, 10);
    EXPECT_LE(worst_difference(generated, reference.logits()), bound);
    LoadedModel again(model, options);
    expect_same_bits(generated, generate_after_prompt(again, tokens, 10));
  }
}

// The model has two layers. The processors have nothing but the first one's experts; the GPU has
// the second one's. A hidden row lies where the residual has gone to.
TEST_F(GpuMixture, has_the_experts_of_the_last_layers_beside_processors) {
  const std::string model = kFolder + "qwen3moe-gqa-f16.gguf";
  const auto tokens = some_tokens(15, 9);
  LoadedModelOptions options = on_gpu();
  options.strategy = Strategy::kReduce;
  options.workers = 2;
  options.gpu_count = 1;
  options.shares = {1, 0, 0};
  options.expert_shares = {0, 2, 1};
  const LoadedModel all_apart(model, options);
  const ReferenceModel reference(model, tokens);
  Roundings roundings = mixed_roundings();
  options.apart_layers = 1;
  for (const bool bf16_sums : {false, true}) {
    options.bf16_sums = bf16_sums;
    roundings.bf16_sums = bf16_sums;
    roundings.ranks = options.shares.size();
    const double bound = reference.bound(roundings);
    LoadedModel loaded(model, options);
    EXPECT_GT(loaded.ranks()[0].plan().weight_bytes, all_apart.ranks()[0].plan().weight_bytes);
    const LogitRows rows = loaded.compute_alone(tokens, 128);
    EXPECT_LE(worst_difference(rows, reference.logits()), bound);
    EXPECT_LE(worst_difference({loaded.hidden_row(14)}, {reference.hidden()[14]}),
              reference.hidden_bound(roundings));
    expect_same_bits(rows, loaded.compute_alone(tokens, 5));
    const LogitRows generated = generate_after_prompt(loaded, tokens, 10);
    EXPECT_LE(worst_difference(generated, reference.logits()), bound);
    LoadedModel again(model, options);
    expect_same_bits(generated, generate_after_prompt(again, tokens, 10));
  }
}

// From the last sum on the GPU computes what it would compute by itself, and the processors meet it
// for the logits alone.
TEST_F(GpuMixture, needs_nobody_for_the_last_layers) {
  const RandomModel model(Format::kQ4_0, Format::kQ8_0, /*seed=*/50, {.count = 3, .used = 3});
  const auto tokens = some_tokens(9, 4);
  LoadedModelOptions options = on_gpu();
  options.strategy = Strategy::kReduce;
  options.gpu_count = 1;
  options.shares = {1, 0};
  options.expert_shares = {0, 1};
  const auto exchanged = [&](size_t apart_layers) {
    options.apart_layers = apart_layers;
    LoadedModel loaded(model.path(), options);
    loaded.compute_alone(tokens, tokens.size());
    uint64_t bytes = 0;
    for (size_t rank = 0; rank < 2; ++rank) {
      bytes += loaded.ranks()[rank].counters(0).exchange_bytes.value();
    }
    return bytes;
  };
  // The embedding goes once, and of each layer with experts apart as much again.
  const uint64_t embedding = tokens.size() * 256 * sizeof(float);
  const uint64_t of_one_layer = exchanged(1) - embedding;
  EXPECT_GE(of_one_layer, 2 * embedding);
  EXPECT_EQ(exchanged(2), embedding + 2 * of_one_layer);
}

}  // namespace
}  // namespace lockstep
