// A model on ranks that are GPUs: made-up ones, whose memory is the host's and whose kernels are
// played by the host, or, in a build with CUDA, those of the machine.
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
#include "engine/text/likeliest.h"
#include "engine/text/sampler.h"
#include "tests/engine/runtime/gpu_rank_case.h"
#include "tests/engine/runtime/random_model.h"

namespace lockstep {
namespace {

class GpuRank : public OnTestGpus {};

// Activations are rounded to bf16 as under `exact`, and so are the weights, as those of a GPU's
// prompted tokens are. So its distance from f32 is that of `exact`, but for what chance makes of
// both, and for queries and weights of keys, which a GPU's attention rounds as it does keys and
// values.
constexpr double kChance = 1.5;
// Of F16 weights `exact` multiplies what their rounding leaves as well, and a GPU's prompts do not.
constexpr double kWithoutRest = 2.5;

// `values`: a model of the same weights, of formats that f32 activations are multiplied with.
void expect_as_near_as_exact(const std::string& model, const std::string& values, size_t count,
                             size_t chunk, KvFormat format, double times) {
  const auto tokens = some_tokens(count, 3);
  ProductFormTable f32;
  f32.fill({ActivationForm::kF32, ActivationForm::kF32});
  const KernelTable* kernels = supported_kernel_tables().front();
  LoadedModel reference(values, {.kernels = kernels, .kv_format = format, .forms = f32});
  LoadedModel exact(model, {.kv_format = format, .profile = Profile::kExact});
  LoadedModel gpu(model, on_gpu(format));
  const LogitRows wanted = reference.compute_alone(tokens, 128);
  const double allowed = worst_difference(exact.compute_alone(tokens, 128), wanted);
  const double found = worst_difference(gpu.compute_alone(tokens, chunk), wanted);
  EXPECT_LE(found, times * allowed + 1e-4);
}

void expect_as_near_as_exact(Format format, Format others, uint64_t seed, size_t chunk,
                             KvFormat kv_format) {
  const RandomModel model(format, others, seed);
  const RandomModel values(format, others, seed, RandomModel::Values::kDequantized);
  expect_as_near_as_exact(model.path(), values.path(), 12, chunk, kv_format, kChance);
}

TEST_F(GpuRank, logits_are_as_near_to_f32_as_those_of_exact_for_every_format) {
  for (const FormatTraits& format : all_formats()) {
    SCOPED_TRACE(format.name);
    // Of F32 weights nothing is rounded but what the cache's format does.
    const bool floats = format.format == Format::kF32;
    expect_as_near_as_exact(format.format, format.format, /*seed=*/21, 12,
                            floats ? KvFormat::kF32 : KvFormat::kF16);
  }
}

TEST_F(GpuRank, logits_are_as_near_to_f32_as_those_of_exact_for_mixtures_and_architectures) {
  expect_as_near_as_exact(Format::kQ4_K, Format::kQ6_K, /*seed=*/22, 7, KvFormat::kF16);
  expect_as_near_as_exact(Format::kQ8_0, Format::kF32, /*seed=*/23, 7, KvFormat::kF16);
  std::ifstream file(kFolder + "index.json");
  const auto models = nlohmann::json::parse(file).at("models");
  ASSERT_FALSE(models.empty());
  for (const auto& model : models) {
    SCOPED_TRACE(model.at("name").get<std::string>());
    const std::string path = kFolder + model.at("file").get<std::string>();
    const bool floats = model.at("format") == "F32";
    expect_as_near_as_exact(path, path, 12, 12, floats ? KvFormat::kF32 : KvFormat::kF16,
                            floats ? kChance : kWithoutRest);
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
  const double spread = largest(generated.back());
  EXPECT_LT(worst_difference(prompted, generated), 0.05 * spread);
}

// Chunks of keys for which there is room are computed side by side, others one after the other.
TEST_F(GpuRank, generated_tokens_without_room_for_their_chunks_have_the_same_bits) {
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
  ASSERT_LT(loaded.plan().attention_blocks, tokens.size());
  expect_same_bits(generate(70), generate(35));
  expect_same_bits(generate(70), generate(1));  // attention prepares the heads itself
}

TEST_F(GpuRank, hidden_rows_are_near_those_of_processors) {
  const RandomModel model(Format::kF16, Format::kF16, /*seed=*/28);
  const auto tokens = some_tokens(5, 6);
  const auto last_row = [&](const LoadedModelOptions& options) {
    LoadedModel loaded(model.path(), options);
    loaded.compute_alone(tokens, 128);
    return loaded.hidden_row(4);
  };
  const std::vector<float> wanted = last_row({.kv_format = KvFormat::kF16});
  const std::vector<float> got = last_row(on_gpu());
  double product = 0;
  double squares = 0;
  double own_squares = 0;
  for (size_t column = 0; column < wanted.size(); ++column) {
    product += double{wanted[column]} * got[column];
    squares += double{wanted[column]} * wanted[column];
    own_squares += double{got[column]} * got[column];
  }
  EXPECT_GT(product / std::sqrt(squares * own_squares), 0.9999);
}

TEST_F(GpuRank, every_format_of_the_cache) {
  const RandomModel model(Format::kQ4_0, Format::kQ4_0, /*seed=*/29);
  const auto tokens = some_tokens(20, 8);
  const LogitRows wanted = LoadedModel(model.path(), on_gpu()).compute_alone(tokens, 128);
  const double spread = largest(wanted.back());
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kQ8_0}) {
    SCOPED_TRACE(static_cast<int>(format));
    LoadedModel loaded(model.path(), on_gpu(format));
    // Half a unit in the last place of bf16's or of 8 bits' values, some layers deep.
    EXPECT_LT(worst_difference(loaded.compute_alone(tokens, 128), wanted), 0.05 * spread);
  }
}

// Heads, feed-forward and vocabulary are cut, partial results summed in order of rank. With three
// ranks two of them share a KV head.
TEST_F(GpuRank, several_gpus_sum_their_parts) {
  const RandomModel model(Format::kQ4_0, Format::kQ4_0, /*seed=*/30);
  const auto tokens = some_tokens(12, 9);
  LoadedModelOptions options = on_gpu();
  const LogitRows alone = LoadedModel(model.path(), options).compute_alone(tokens, 128);
  const double spread = largest(alone.back());
  options.strategy = Strategy::kReduce;
  for (const std::vector<double>& shares : {std::vector<double>{1, 1}, {2, 1, 1}}) {
    SCOPED_TRACE(shares.size());
    options.shares = shares;
    LoadedModel several(model.path(), options);
    const LogitRows rows = several.compute_alone(tokens, 128);
    // Other sums, and so now and then another rounding to bf16.
    EXPECT_LT(worst_difference(rows, alone), 0.02 * spread);
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
  const double spread = largest(wanted.back());
  EXPECT_LT(worst_difference(wanted, rounded), 0.05 * spread);
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
  options.gpu_count = 0;
  const LogitRows processors = LoadedModel(model.path(), options).compute_alone(tokens, 128);
  const double spread = largest(processors.back());
  for (const bool bf16_sums : {false, true}) {
    options.bf16_sums = bf16_sums;
    options.gpu_count = 1;
    LoadedModel mixed(model.path(), options);
    const LogitRows rows = mixed.compute_alone(tokens, 128);
    EXPECT_LT(worst_difference(rows, processors), 0.05 * spread);
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

// The greedy continuations that an independent engine gives.
TEST_F(GpuRank, a_trained_model_continues_as_expected) {
  const std::string path = test_data_dir() + "/stories260K.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  std::ifstream file(test_data_dir() + "/stories260K.expected.json");
  const nlohmann::json expected = nlohmann::json::parse(file).at(0);
  LoadedModel loaded(path, on_gpu());
  auto next = expected.at("prompt_ids").get<std::vector<TokenId>>();
  const auto ids = expected.at("ids").get<std::vector<TokenId>>();
  LoadedModel::Sequence sequence = loaded.new_sequence(next.size() + ids.size());
  for (size_t step = 0; step < std::min<size_t>(ids.size(), 12); ++step) {
    const std::vector<LoadedModel::Piece> pieces = {{sequence, next}};
    const std::vector<float> logits = loaded.compute(pieces, step == 0 ? 0 : 1).back();
    const LogprobResult result = compute_logprobs(logits, ids[step], 1);
    ASSERT_EQ(result.top.at(0).token, ids[step]) << "step " << step;
    ASSERT_NEAR(result.logprob, expected.at("logprobs").at(step).at("logprob").get<double>(), 0.02)
        << "step " << step;
    next = {ids[step]};
  }
}

}  // namespace
}  // namespace lockstep
