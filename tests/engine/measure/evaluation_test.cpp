// Perplexity and divergence against the same figures computed from the log-probabilities that
// requests get: another way through the engine, and other formulas.
#include "engine/measure/evaluation.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

const std::string kFixtures = source_dir() + "/tests/fixtures/logits/";
const std::string kModel = kFixtures + "llama-gqa-f16.gguf";
const std::string kSameVocabulary = kFixtures + "llama-wide-head-f16.gguf";
const std::string kOtherVocabulary = kFixtures + "llama-mha-f32.gguf";
const std::string kModelWithBos = source_dir() + "/config/demo.gguf";

EngineOptions options_for(const std::string& model) {
  EngineOptions options;
  options.model = model;
  options.worker_count = 2;
  options.sequence_count = 3;
  options.context_tokens = 96;
  options.batch_tokens = 48;
  return options;
}

std::unique_ptr<Engine> load(const EngineOptions& options) {
  auto opened = Engine::open(options);
  if (!opened) throw std::runtime_error(opened.error().message);
  if (auto loaded = (*opened)->load(); !loaded) throw std::runtime_error(loaded.error().message);
  return std::move(*opened);
}

std::unique_ptr<Engine> load(const std::string& model) {
  return load(options_for(model));
}

std::vector<TokenId> random_tokens(size_t count, const Engine& engine) {
  std::mt19937 random(17);
  std::vector<TokenId> tokens;
  for (size_t index = 0; index < count; ++index) {
    tokens.push_back(static_cast<TokenId>(random() % engine.tokenizer().vocabulary_size()));
  }
  return tokens;
}

// ln p of every token of the vocabulary after each token of a prompt but the last, as a request
// with prompt_logprobs gets them.
std::vector<std::map<TokenId, double>> served_logprobs(Engine& engine,
                                                       std::span<const TokenId> prompt) {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::vector<std::map<TokenId, double>> found;
  Request request;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.max_tokens = 0;
  request.prompt_logprobs = engine.model().vocabulary_size;
  request.on_output = [&](Output&& output) {
    const std::lock_guard lock(mutex);
    for (const OutputToken& token : output.prompt) {
      if (std::isnan(token.logprob)) continue;  // the first
      auto& all = found.emplace_back();
      for (const TokenLogprob& each : token.top) {
        all[each.token] = static_cast<double>(each.logprob);
      }
    }
    ended = output.finish.has_value();
    changed.notify_all();
  };
  EXPECT_TRUE(engine.submit(std::move(request)).has_value());
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended; });
  return found;
}

struct Expected {
  double log_loss = 0;
  double reference_log_loss = 0;
  double divergence = 0;
  double agreement = 0;
  uint64_t count = 0;
};

TokenId likeliest(const std::map<TokenId, double>& logprobs) {
  TokenId best = logprobs.begin()->first;
  for (const auto& [token, logprob] : logprobs) {
    if (logprob > logprobs.at(best)) best = token;
  }
  return best;
}

Expected expect(Engine& model, Engine& reference, std::span<const TokenId> tokens, size_t length) {
  Expected expected;
  for (size_t begin = 0; begin + length <= tokens.size(); begin += length) {
    std::vector<TokenId> chunk(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                               tokens.begin() + static_cast<std::ptrdiff_t>(begin + length));
    if (model.tokenizer().adds_bos()) chunk[0] = *model.tokenizer().bos();
    const auto found = served_logprobs(model, chunk);
    const auto wanted = served_logprobs(reference, chunk);
    for (size_t position = length / 2; position + 1 < length; ++position) {
      const TokenId next = chunk[position + 1];
      expected.log_loss -= found[position].at(next);
      expected.reference_log_loss -= wanted[position].at(next);
      for (const auto& [token, logprob] : wanted[position]) {
        expected.divergence += std::exp(logprob) * (logprob - found[position].at(token));
      }
      expected.agreement += likeliest(found[position]) == likeliest(wanted[position]) ? 1 : 0;
      ++expected.count;
    }
  }
  const auto count = static_cast<double>(expected.count);
  expected.log_loss /= count;
  expected.reference_log_loss /= count;
  expected.divergence /= count;
  expected.agreement /= count;
  return expected;
}

void expect_equal(const Evaluation& found, const Expected& expected) {
  constexpr double kTolerance = 2e-5;  // logprobs are floats
  EXPECT_EQ(found.scored_tokens, expected.count);
  EXPECT_NEAR(found.log_loss.mean, expected.log_loss, kTolerance);
  EXPECT_NEAR(found.perplexity.mean, std::exp(expected.log_loss),
              kTolerance * std::exp(expected.log_loss));
  ASSERT_TRUE(found.comparison.has_value());
  EXPECT_NEAR(found.comparison->divergence.mean, expected.divergence, kTolerance);
  EXPECT_NEAR(std::log(found.comparison->perplexity.mean), expected.reference_log_loss, kTolerance);
  EXPECT_NEAR(found.comparison->log_ratio.mean, expected.log_loss - expected.reference_log_loss,
              kTolerance);
  EXPECT_NEAR(found.comparison->top_agreement.mean, expected.agreement, 1e-12);
}

TEST(Evaluation, figures_are_those_of_the_logprobs_that_requests_get) {
  const auto model = load(kModel);
  const auto reference = load(kSameVocabulary);
  const auto tokens = random_tokens(5 * 40 + 39, *model);
  for (const uint32_t context : {40U, 33U}) {
    SCOPED_TRACE(context);
    const auto found = evaluate(*model, reference.get(), tokens, {.context_tokens = context});
    ASSERT_TRUE(found.has_value()) << found.error().message;
    EXPECT_EQ(found->text_tokens, tokens.size());
    EXPECT_EQ(found->chunk_count, tokens.size() / context);
    const Expected expected = expect(*model, *reference, tokens, context);
    EXPECT_GT(expected.divergence, 0.01);
    expect_equal(*found, expected);
  }
}

TEST(Evaluation, chunks_begin_as_the_vocabulary_begins_texts) {
  const auto model = load(kModelWithBos);
  ASSERT_TRUE(model->tokenizer().adds_bos());
  const auto tokens = random_tokens(64, *model);
  const auto found = evaluate(*model, model.get(), tokens, {.context_tokens = 32});
  ASSERT_TRUE(found.has_value()) << found.error().message;
  expect_equal(*found, expect(*model, *model, tokens, 32));
}

TEST(Evaluation, a_model_is_at_no_distance_from_itself) {
  const auto model = load(kModel);
  const auto again = load(kModel);
  const auto found =
      evaluate(*model, again.get(), random_tokens(200, *model), {.context_tokens = 50});
  ASSERT_TRUE(found.has_value()) << found.error().message;
  const Evaluation::Comparison& than = *found->comparison;
  EXPECT_EQ(than.divergence.mean, 0);
  EXPECT_EQ(than.divergence_max, 0);
  EXPECT_EQ(than.log_ratio.mean, 0);
  EXPECT_EQ(than.perplexity.mean, found->perplexity.mean);
  EXPECT_EQ(than.top_agreement.mean, 1);
}

TEST(Evaluation, divergences_are_in_order_and_errors_shrink_with_the_text) {
  const auto model = load(kModel);
  const auto reference = load(kSameVocabulary);
  const auto tokens = random_tokens(40 * 40, *model);
  const auto few =
      evaluate(*model, reference.get(), tokens, {.context_tokens = 40, .chunk_count = 4});
  const auto many = evaluate(*model, reference.get(), tokens, {.context_tokens = 40});
  ASSERT_TRUE(few.has_value() && many.has_value());
  EXPECT_EQ(few->chunk_count, 4U);
  EXPECT_EQ(few->scored_tokens, 4U * 19U);
  EXPECT_EQ(many->scored_tokens, 40U * 19U);
  const Evaluation::Comparison& than = *many->comparison;
  EXPECT_GT(than.divergence_median, 0);
  EXPECT_LE(than.divergence_median, than.divergence_90);
  EXPECT_LE(than.divergence_90, than.divergence_99);
  EXPECT_LE(than.divergence_99, than.divergence_max);
  EXPECT_LT(than.divergence.mean, than.divergence_max);
  // Ten times the tokens: a third of the error, and noise.
  EXPECT_NEAR(few->log_loss.error / many->log_loss.error, std::sqrt(10), 1.5);
  EXPECT_NEAR(few->log_loss.mean, many->log_loss.mean, 5 * few->log_loss.error);
}

// The exact profile promises the same logits for prompted and generated tokens, in any passes and
// beside any other sequences.
TEST(Evaluation, generated_tokens_have_the_logits_of_prompted_ones) {
  std::optional<Evaluation> first;
  for (const uint32_t batch_tokens : {48U, 7U}) {
    EngineOptions options = options_for(kModel);
    options.batch_tokens = batch_tokens;
    options.logit_rows = batch_tokens;
    options.arithmetic = "exact";
    const auto model = load(options);
    EXPECT_EQ(model->model().arithmetic, "exact");
    const auto tokens = random_tokens(7 * 40, *model);
    for (const bool generated : {false, true}) {
      const auto found =
          evaluate(*model, nullptr, tokens,
                   {.context_tokens = 40, .generated = generated, .side_by_side = 3});
      ASSERT_TRUE(found.has_value()) << found.error().message;
      if (!first) first = *found;
      EXPECT_EQ(found->chunk_count, 7U);
      // One bit of one logit would show; that doubles are added in another order does not.
      constexpr double kTolerance = 1e-11;
      EXPECT_NEAR(found->log_loss.mean, first->log_loss.mean, kTolerance);
      EXPECT_NEAR(found->log_loss.error, first->log_loss.error, kTolerance);
    }
  }
}

TEST(Evaluation, every_chunk_is_told_of) {
  const auto model = load(kModel);
  std::vector<uint32_t> done;
  const auto found = evaluate(*model, nullptr, random_tokens(5 * 16, *model),
                              {.context_tokens = 16,
                               .generated = true,
                               .side_by_side = 2,
                               .on_chunks = [&](uint32_t some, uint32_t all) {
                                 EXPECT_EQ(all, 5U);
                                 done.push_back(some);
                               }});
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(done, (std::vector<uint32_t>{2, 4, 5}));
  EXPECT_FALSE(found->comparison.has_value());
}

TEST(Evaluation, what_cannot_be_evaluated_is_refused_with_the_numbers) {
  const auto model = load(kModel);
  const auto message = [&](Engine* reference, size_t tokens, const EvaluationOptions& options) {
    const auto found = evaluate(*model, reference, random_tokens(tokens, *model), options);
    if (found.has_value()) return std::string("not refused");
    EXPECT_EQ(found.error().kind, ErrorKind::kInvalidInput);
    return found.error().message;
  };
  EXPECT_NE(message(nullptr, 39, {.context_tokens = 40}).find("39 tokens"), std::string::npos);
  EXPECT_NE(message(nullptr, 39, {.context_tokens = 3}).find("3 tokens"), std::string::npos);
  // Longer than the context that was laid out: 96 tokens, in whole pages.
  EXPECT_NE(message(nullptr, 1000, {.context_tokens = 600}).find("--context"), std::string::npos);
  const auto other = load(kOtherVocabulary);
  const std::string differing = message(other.get(), 100, {.context_tokens = 40});
  EXPECT_NE(differing.find("259"), std::string::npos) << differing;
  EXPECT_NE(differing.find("131"), std::string::npos) << differing;
  const std::vector<TokenId> foreign(64, 100'000);
  const auto unknown = evaluate(*model, nullptr, foreign, {.context_tokens = 40});
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("100000"), std::string::npos);
}

TEST(Evaluation, a_model_without_usable_numbers_is_an_error) {
  const std::string path =
      testing::TempDir() + "lockstep-evaluation-" + std::to_string(getpid()) + ".gguf";
  std::ifstream file(kModel, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  for (size_t index = bytes.size() - 4096; index < bytes.size(); ++index) bytes[index] = 0x7E;
  std::ofstream(path, std::ios::binary) << bytes;
  const auto model = load(path);
  std::filesystem::remove(path);
  const auto found = evaluate(*model, nullptr, random_tokens(64, *model), {.context_tokens = 32});
  ASSERT_FALSE(found.has_value());
  EXPECT_NE(found.error().message.find("no usable numbers"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
