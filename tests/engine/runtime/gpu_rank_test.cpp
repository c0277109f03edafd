// A model on ranks that are GPUs: simulated ones, whose memory is the host's and whose kernels run
// on the host, or, in a build with CUDA, those of the machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/kernels/gpu_candidates.h"
#include "engine/kernels/gpu_tile.h"
#include "engine/sampling/logprobs.h"
#include "tests/engine/runtime/continuations.h"
#include "tests/engine/runtime/gpu_rank_case.h"
#include "tests/engine/runtime/random_model.h"

namespace lockstep {
namespace {

class GpuRank : public OnTestGpus {};

void expect_near_reference(const std::string& model, size_t count, size_t chunk, KvFormat format) {
  const auto tokens = some_tokens(count, 3);
  const ReferenceModel reference(model, tokens);
  const double bound = reference.bound(gpu_roundings(format));
  LoadedModel gpu(model, on_gpu(format));
  EXPECT_LE(worst_difference(gpu.compute_alone(tokens, chunk), reference.logits()), bound);
  EXPECT_LE(worst_difference(generate_after_prompt(gpu, tokens, count / 2), reference.logits()),
            bound);
}

void expect_near_reference(Format format, Format others, uint64_t seed, size_t chunk,
                           KvFormat kv_format) {
  const RandomModel model(format, others, seed);
  expect_near_reference(model.path(), 12, chunk, kv_format);
}

TEST_F(GpuRank, logits_are_the_models_for_every_format) {
  for (const FormatTraits& format : all_formats()) {
    if (!has_gpu_kernels(format.format)) continue;
    SCOPED_TRACE(format.name);
    // With F32 weights only the cache's format rounds, so that is F32 as well.
    const bool floats = format.format == Format::kF32;
    expect_near_reference(format.format, format.format, /*seed=*/21, 12,
                          floats ? KvFormat::kF32 : KvFormat::kF16);
  }
}

TEST_F(GpuRank, logits_are_the_models_for_mixtures_and_architectures) {
  expect_near_reference(Format::kQ4_K, Format::kQ6_K, /*seed=*/22, 7, KvFormat::kF16);
  expect_near_reference(Format::kQ8_0, Format::kF32, /*seed=*/23, 7, KvFormat::kF16);
  std::ifstream file(kFolder + "index.json");
  const auto models = nlohmann::json::parse(file).at("models");
  ASSERT_FALSE(models.empty());
  for (const auto& model : models) {
    SCOPED_TRACE(model.at("name").get<std::string>());
    const bool floats = model.at("format") == "F32";
    expect_near_reference(kFolder + model.at("file").get<std::string>(), 12, 12,
                          floats ? KvFormat::kF32 : KvFormat::kF16);
  }
}

// More tokens than one product takes, and than one page has.
TEST_F(GpuRank, a_long_prompt_has_the_same_bits_in_any_chunks) {
  const RandomModel model(Format::kQ4_0, Format::kQ4_0, /*seed=*/24);
  const auto tokens = some_tokens(80, 5);
  LoadedModel loaded(model.path(), on_gpu());
  const LogitRows whole = loaded.compute_alone(tokens, 128);
  expect_same_bits(whole, loaded.compute_alone(tokens, 23));
  expect_same_bits(whole, loaded.compute_alone(tokens, 79));  // the last token alone
}

TEST_F(GpuRank, a_token_has_the_same_bits_whoever_is_beside_it) {
  const RandomModel model(Format::kQ4_K, Format::kQ6_K, /*seed=*/25);
  const auto first = some_tokens(13, 1);
  const auto second = some_tokens(21, 40);
  LoadedModel loaded(model.path(), on_gpu());
  const LogitRows alone = loaded.compute_alone(first, 128);
  LoadedModel::Sequence a = loaded.new_sequence(first.size() + 1);
  LoadedModel::Sequence b = loaded.new_sequence(second.size() + 1);
  const std::vector<LoadedModel::Piece> prompts = {{b, second}, {a, first}};
  const LogitRows together = loaded.compute(prompts);
  expect_same_bits(alone, {together.begin() + 21, together.end()});
  // A generated token: beside another one, and beside a prompt.
  LoadedModel::Sequence c = loaded.new_sequence(second.size());
  LoadedModel::Sequence a_again = a;
  const std::vector<TokenId> next = {17};
  const std::vector<LoadedModel::Piece> both = {{a, next}, {b, next}};
  const std::vector<float> beside_one = loaded.compute(both, 2).front();
  const std::vector<LoadedModel::Piece> mixed = {{a_again, next}, {c, second}};
  const LogitRows beside_a_prompt = loaded.compute(mixed, 1);
  expect_same_bits({beside_one}, {beside_a_prompt.front()});
  // And the prompt: beside another one, and beside a generated token.
  expect_same_bits({together.begin(), together.begin() + 21},
                   {beside_a_prompt.begin() + 1, beside_a_prompt.end()});
}

// Prompted tokens have products of their own, with weights that are rounded. Were they the same,
// the tests of bits would say nothing of them.
TEST_F(GpuRank, a_prompted_token_has_other_bits_than_a_generated_one) {
  const RandomModel model(Format::kQ4_K, Format::kQ6_K, /*seed=*/34);
  const auto tokens = some_tokens(3, 5);
  LoadedModel loaded(model.path(), on_gpu());
  const LogitRows prompted = loaded.compute_alone(tokens, 128);
  loaded.set_generated(true);
  const LogitRows generated = loaded.compute_alone(tokens, 128);
  EXPECT_NE(prompted.front(), generated.front());
}

// Chunks of keys for which there is space are computed side by side, others one after the other.
TEST_F(GpuRank, generated_tokens_without_space_for_their_chunks_have_the_same_bits) {
  const RandomModel model(Format::kF16, Format::kF16, /*seed=*/27);
  const auto tokens = some_tokens(70, 4);
  LoadedModelOptions options = on_gpu();
  options.batch_tokens = 70;
  options.kv_pages = 2;
  LoadedModel loaded(model.path(), options);
  const auto generate = [&](size_t at_once) {
    LoadedModel::Sequence sequence = loaded.new_sequence(tokens.size());
    LogitRows rows;
    for (size_t begin = 0; begin < tokens.size(); begin += at_once) {
      const size_t count = std::min(at_once, tokens.size() - begin);
      const std::vector<LoadedModel::Piece> piece = {
          {sequence, std::span(tokens).subspan(begin, count)}};
      for (auto& row : loaded.compute(piece, count)) rows.push_back(std::move(row));
    }
    loaded.give_back(sequence);
    return rows;
  };
  ASSERT_LT(std::get<GpuAreas>(loaded.plan().areas).limits.attention_units, tokens.size());
  expect_same_bits(generate(70), generate(35));
  expect_same_bits(generate(70), generate(1));  // attention prepares the heads itself
}

TEST_F(GpuRank, hidden_rows_are_the_models) {
  const RandomModel model(Format::kF16, Format::kF16, /*seed=*/28);
  const auto tokens = some_tokens(5, 6);
  const ReferenceModel reference(model.path(), tokens);
  LoadedModel loaded(model.path(), on_gpu());
  loaded.compute_alone(tokens, 128);
  EXPECT_LE(worst_difference({loaded.hidden_row(4)}, {reference.hidden()[4]}),
            reference.hidden_bound(gpu_roundings(KvFormat::kF16)));
}

TEST_F(GpuRank, every_format_of_the_cache) {
  const RandomModel model(Format::kQ4_0, Format::kQ4_0, /*seed=*/29);
  const auto tokens = some_tokens(20, 8);
  const ReferenceModel reference(model.path(), tokens);
  for (const KvFormat format : {KvFormat::kF16, KvFormat::kF32, KvFormat::kBf16, KvFormat::kQ8_0}) {
    SCOPED_TRACE(static_cast<int>(format));
    LoadedModel loaded(model.path(), on_gpu(format));
    expect_near(loaded.compute_alone(tokens, 128), reference, gpu_roundings(format));
  }
}

// Heads, feed-forward and vocabulary are cut, partial results summed in order of rank. With three
// ranks two of them share a KV head.
TEST_F(GpuRank, several_gpus_sum_their_parts) {
  const RandomModel model(Format::kQ4_0, Format::kQ4_0, /*seed=*/30);
  const auto tokens = some_tokens(12, 9);
  LoadedModelOptions options = on_gpu();
  const ReferenceModel reference(model.path(), tokens);
  const double bound = reference.bound(gpu_roundings(KvFormat::kF16));
  options.strategy = Strategy::kReduce;
  for (const std::vector<double>& shares : {std::vector<double>{1, 1}, {2, 1, 1}}) {
    SCOPED_TRACE(shares.size());
    options.shares = shares;
    LoadedModel several(model.path(), options);
    const LogitRows rows = several.compute_alone(tokens, 128);
    EXPECT_LE(worst_difference(rows, reference.logits()), bound);
    expect_same_bits(rows, several.compute_alone(tokens, 128));
    LoadedModel again(model.path(), options);
    expect_same_bits(rows, again.compute_alone(tokens, 5));
  }
}

TEST_F(GpuRank, sums_in_one_shot_and_in_two_have_the_same_bits) {
  const RandomModel model(Format::kQ4_0, Format::kQ4_0, /*seed=*/38);
  const auto tokens = some_tokens(12, 9);
  GpuPlatform in_one = test_gpus();
  in_one.sum_way = [](const GpuSumQuestion&) { return GpuSumWay::kPeerMemory; };
  GpuPlatform in_two = test_gpus();
  in_two.sum_way = [](const GpuSumQuestion&) { return GpuSumWay::kPeerMemoryInTwoShots; };
  LoadedModelOptions options = on_gpu();
  options.strategy = Strategy::kReduce;
  options.shares = {2, 1, 1};
  for (const bool bf16_sums : {false, true}) {
    options.bf16_sums = bf16_sums;
    options.gpus = &in_one;
    const LogitRows wanted = LoadedModel(model.path(), options).compute_alone(tokens, 12);
    options.gpus = &in_two;
    LoadedModel loaded(model.path(), options);
    expect_same_bits(wanted, loaded.compute_alone(tokens, 12));
    expect_same_bits(wanted, loaded.compute_alone(tokens, 5));
  }
}

// However sums travel, they have one order: that of the ranks.
TEST_F(GpuRank, gpus_that_do_not_reach_one_another_give_the_same_bits_by_nccl) {
  const RandomModel model(Format::kQ4_0, Format::kQ4_0, /*seed=*/34);
  const auto tokens = some_tokens(4, 9);
  const GpuPlatform by_nccl = test_gpus_by_nccl();
  for (const std::vector<double>& shares : {std::vector<double>{1, 1}, {2, 1, 1}, {1, 1, 1, 1}}) {
    SCOPED_TRACE(shares.size());
    if (const std::string absence = no_nccl_for(shares.size()); !absence.empty()) {
      GTEST_SKIP() << absence;
    }
    LoadedModelOptions options = on_gpu();
    options.strategy = Strategy::kReduce;
    options.shares = shares;
    for (const bool bf16_sums : {false, true}) {
      options.bf16_sums = bf16_sums;
      options.gpus = &test_gpus();
      const LogitRows wanted = LoadedModel(model.path(), options).compute_alone(tokens, 4);
      options.gpus = &by_nccl;
      LoadedModel loaded(model.path(), options);
      ASSERT_FALSE(loaded.ranks().shares_gpu_memory());
      expect_same_bits(wanted, loaded.compute_alone(tokens, bf16_sums ? 4 : 3));
    }
  }
}

LoadedModelOptions on_two_gpus(bool bf16_sums) {
  LoadedModelOptions options = on_gpu();
  options.strategy = Strategy::kReduce;
  options.shares = {1, 1};
  options.bf16_sums = bf16_sums;
  return options;
}

TEST_F(GpuRank, sums_of_prompted_tokens_alone_travel_as_bf16) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/36);
  const auto tokens = some_tokens(3, 9);
  LoadedModel f32(model.path(), on_two_gpus(false));
  LoadedModel bf16(model.path(), on_two_gpus(true));
  const LogitRows wanted = f32.compute_alone(tokens, 3);
  const LogitRows rounded = bf16.compute_alone(tokens, 3);
  EXPECT_NE(wanted, rounded);
  Roundings roundings = gpu_roundings(KvFormat::kF16);
  roundings.bf16_sums = true;
  roundings.ranks = 2;
  expect_near(rounded, ReferenceModel(model.path(), tokens), roundings);
  f32.set_generated(true);
  bf16.set_generated(true);
  expect_same_bits(f32.compute_alone(tokens, 3), bf16.compute_alone(tokens, 3));
}

// Sums are the larger the more tokens a pass has: here of 3 rows and of 73.
TEST_F(GpuRank, whose_sums_travel_as_bf16_does_not_depend_on_who_is_beside_them) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/37);
  const auto first = some_tokens(3, 1);
  const auto second = some_tokens(70, 40);
  const std::vector<TokenId> next = {17};
  LoadedModel loaded(model.path(), on_two_gpus(true));
  LoadedModel::Sequence a = loaded.new_sequence(first.size() + 1);
  const std::vector<LoadedModel::Piece> prompt = {{a, first}};
  const LogitRows prompted = loaded.compute(prompt);
  LoadedModel::Sequence a_again = a;
  const std::vector<LoadedModel::Piece> one = {{a, next}};
  const LogitRows generated = loaded.compute(one, 1);
  LoadedModel::Sequence b = loaded.new_sequence(first.size());
  LoadedModel::Sequence c = loaded.new_sequence(second.size());
  const std::vector<LoadedModel::Piece> all = {{a_again, next}, {b, first}, {c, second}};
  const LogitRows together = loaded.compute(all, 1);
  expect_same_bits(generated, {together.front()});
  expect_same_bits(prompted, {together.begin() + 1, together.begin() + 4});
}

// Processors and GPUs: each with its own layout and arithmetic, sums in the host's memory.
TEST_F(GpuRank, sums_with_processors) {
  const RandomModel model(Format::kQ4_0, Format::kQ4_0, /*seed=*/31);
  const auto tokens = some_tokens(12, 9);
  LoadedModelOptions options = on_gpu();
  options.strategy = Strategy::kReduce;
  options.shares = {1, 1};
  options.workers = 2;
  const ReferenceModel reference(model.path(), tokens);
  Roundings roundings = mixed_roundings();
  roundings.ranks = 2;
  for (const bool bf16_sums : {false, true}) {
    options.bf16_sums = bf16_sums;
    options.gpu_count = 1;
    LoadedModel mixed(model.path(), options);
    const LogitRows rows = mixed.compute_alone(tokens, 128);
    roundings.bf16_sums = bf16_sums;
    expect_near(rows, reference, roundings);
    expect_same_bits(rows, mixed.compute_alone(tokens, 5));
  }
}

void expect_candidates(LogitRow row, const std::vector<float>& all) {
  ASSERT_NE(row.candidates(), nullptr);
  const LogitCandidates& candidates = *row.candidates();
  std::vector<TokenLogprob> likeliest;
  select_likeliest(all, kGpuCandidates, likeliest);
  std::ranges::sort(likeliest, is_likelier);
  ASSERT_EQ(candidates.tokens.size(), likeliest.size());
  for (size_t index = 0; index < likeliest.size(); ++index) {
    ASSERT_EQ(candidates.tokens[index], likeliest[index].token) << "candidate " << index;
    ASSERT_EQ(candidates.logits[index], likeliest[index].logprob);
  }
  EXPECT_TRUE(row.is_finite());
}

// In the memory of one GPU, whose ranks are several, and none where processors write the logits.
TEST_F(GpuRank, the_likeliest_logits_are_at_hand) {
  const std::string model = kFolder + "llama-gqa-f16.gguf";
  const auto tokens = some_tokens(7, 9);
  LoadedModelOptions options = on_gpu();
  for (const std::vector<double>& shares : {std::vector<double>{1}, {1, 1}}) {
    SCOPED_TRACE(shares.size());
    options.shares = shares;
    options.strategy = shares.size() > 1 ? Strategy::kReduce : Strategy::kGather;
    LoadedModel loaded(model, options);
    ASSERT_GT(loaded.plan().vocabulary_size, kGpuCandidates);
    const LogitRows rows = loaded.compute_alone(tokens, tokens.size());
    for (size_t row = 0; row < rows.size(); ++row) {
      expect_candidates(loaded.logit_row(row), rows[row]);
    }
  }
  options.gpu_count = 1;
  LoadedModel mixed(model, options);
  mixed.compute_alone(tokens, tokens.size());
  EXPECT_EQ(mixed.logit_row(0).candidates(), nullptr);
}

// The continuations of an independent reference.
TEST_F(GpuRank, a_trained_model_continues_as_expected) {
  // Weights and activations of a product are rounded to bf16, by 2^-9 at most each. Over the 35
  // products of five layers independent errors come to sqrt(2 * 35) * 2^-9 = 0.016 of what a logit
  // is apart from the likeliest, which here is about 6.
  constexpr double kTolerance = 0.1;
  LoadedModel loaded(source_dir() + "/config/demo.gguf", on_gpu());
  for (const Continuation& expected : read_continuations()) {
    expect_continuation(loaded, expected, {.steps = 12, .tolerance = kTolerance});
  }
}

}  // namespace
}  // namespace lockstep
