// Invariant: how the work is split over ranks changes no bit of the logits (gather), or only by the
// rounding of sums of a fixed order (reduce).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/rank_answers.h"
#include "tests/engine/runtime/reference_model.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

const std::string kFolder = source_dir() + "/tests/fixtures/logits/";

const std::vector<std::vector<double>> kSplits = {
    {1}, {1, 1}, {3, 1}, {1, 1, 1}, {5, 2, 1}, {1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1}};

std::string text_of(const std::vector<double>& shares) {
  return fmt::format("shares {}", fmt::join(shares, ":"));
}

class Models {
 public:
  Models() {
    for (const Format format : {Format::kF32, Format::kQ8_0, Format::kQ4_K}) add(format, format);
    add(Format::kQ8_0, Format::kF16);  // products of one input that want different forms of it
    add(Format::kF16, Format::kQ6_K);
    add(Format::kQ4_0, Format::kQ8_0, {.count = 6, .used = 2});
    add(Format::kF32, Format::kF32, {.count = 5, .used = 3});
    for (const char* name : {"llama-gqa-f16", "llama-mqa-tied-f32", "llama-bias-f32",
                             "llama-mha-f32", "qwen3-gqa-f32", "qwen2-mha-f16"}) {
      paths_.push_back(kFolder + name + ".gguf");
    }
  }
  const std::vector<std::string>& paths() const { return paths_; }
  const std::string& random(size_t index) const { return paths_[index]; }

 private:
  void add(Format format, Format others, RandomModel::Experts experts = {}) {
    made_.push_back(std::make_unique<RandomModel>(format, others, /*seed=*/23, experts));
    paths_.push_back(made_.back()->path());
  }
  std::vector<std::unique_ptr<RandomModel>> made_;
  std::vector<std::string> paths_;
};

TEST(Ranks, any_number_and_shares_give_the_same_bits) {
  const Models models;
  for (const std::string& path : models.paths()) {
    SCOPED_TRACE(path);
    Answers first;
    for (const std::vector<double>& shares : kSplits) {
      for (const size_t workers : {1U, 2U, 4U}) {
        SCOPED_TRACE(text_of(shares) + ", " + std::to_string(workers) + " workers each");
        LoadedModel model(path, {.workers = workers, .shares = shares});
        const Answers answers = compute_answers(model);
        if (first.prompt.empty()) first = answers;
        expect_same_bits(first.prompt, answers.prompt);
        expect_same_bits(first.generated, answers.generated);
        expect_same_bits(first.among_others, answers.among_others);
        expect_same_bits(answers.prompt, answers.among_others);
      }
    }
  }
}

double spread(const LogitRows& rows) {
  double most = 0;
  for (const auto& row : rows) {
    const auto [least, greatest] = std::ranges::minmax(row);
    most = std::max(most, static_cast<double>(greatest) - static_cast<double>(least));
  }
  return most;
}

double largest_difference(const LogitRows& a, const LogitRows& b) {
  double most = 0;
  for (size_t row = 0; row < a.size(); ++row) {
    for (size_t column = 0; column < a[row].size(); ++column) {
      const double difference =
          static_cast<double>(a[row][column]) - static_cast<double>(b[row][column]);
      EXPECT_TRUE(std::isfinite(difference)) << "row " << row << ", column " << column;
      most = std::max(most, std::abs(difference));
    }
  }
  return most;
}

// Roundings of the row that processors are given, for prompted and generated tokens together.
Roundings own_roundings() {
  const KernelTable& table = *choose_kernel_table(kernel_row()).value();
  return joined(roundings_of(table, Profile::kFast, KvFormat::kF32),
                roundings_of(table, Profile::kFast, KvFormat::kF32, true));
}

TEST(Ranks, reduce_is_the_same_in_every_run_and_near_to_the_model) {
  const Models models;
  for (const std::string& path : models.paths()) {
    SCOPED_TRACE(path);
    const ReferenceModel reference(path, some_tokens(70, 2));
    const double bound = reference.bound(own_roundings());
    for (const std::vector<double>& shares : {std::vector<double>{1, 1}, {3, 1}}) {
      SCOPED_TRACE(text_of(shares));
      const LoadedModelOptions options{
          .workers = 2, .shares = shares, .strategy = Strategy::kReduce};
      LoadedModel model(path, options);
      const Answers once = compute_answers(model);
      LoadedModel again_model(path, options);
      const Answers again = compute_answers(again_model);
      expect_same_bits(once.prompt, again.prompt);
      expect_same_bits(once.generated, again.generated);
      expect_same_bits(once.prompt, once.among_others);
      EXPECT_LE(worst_difference(once.prompt, reference.logits()), bound);
    }
  }
}

// Experts of 3 and of 6 blocks of columns, and an attention of one, over more ranks than blocks.
TEST(Ranks, experts_of_few_blocks_are_split_over_any_number_of_ranks) {
  const auto tokens = some_tokens(20, 2);
  for (const uint32_t feed_forward : {768U, 1536U}) {
    const RandomModel model(Format::kQ4_K, Format::kQ6_K, /*seed=*/24,
                            {.count = 3, .used = 3, .feed_forward = feed_forward});
    const ReferenceModel reference(model.path(), tokens);
    const double bound = reference.bound(own_roundings());
    const LogitRows alone = LoadedModel(model.path(), {}).compute_alone(tokens, 128);
    for (const std::vector<double>& shares : {std::vector<double>{1, 1},
                                              {1, 1, 1},
                                              {1, 1, 1, 1},
                                              {5, 1, 1, 1},
                                              {1, 1, 1, 1, 1},
                                              {1, 1, 1, 1, 1, 1},
                                              {1, 2, 1, 1, 1, 1, 1},
                                              {1, 1, 1, 1, 1, 1, 1, 1}}) {
      SCOPED_TRACE(fmt::format("{} columns, {}", feed_forward, text_of(shares)));
      LoadedModel gathers(model.path(), {.shares = shares});
      expect_same_bits(alone, gathers.compute_alone(tokens, 128));
      // Two layers of three blocks leave an eighth rank without any weight, which is refused.
      if (shares.size() == 8) continue;
      const LoadedModelOptions options{.shares = shares, .strategy = Strategy::kReduce};
      LoadedModel reduces(model.path(), options);
      const LogitRows rows = reduces.compute_alone(tokens, 128);
      EXPECT_LE(worst_difference(rows, reference.logits()), bound);
      expect_same_bits(rows, LoadedModel(model.path(), options).compute_alone(tokens, 7));
    }
  }
}

// bf16 keeps 8 bits: each of the two roundings of a sum is off by at most 2^-9 of it. There are two
// sums per layer; what a layer adds to the residual is at most about its size, so that the logits
// move by a few times 2 layers * 2 sums * 2 * 2^-9 of their spread.
TEST(Ranks, sums_in_bf16_are_the_same_in_every_run_and_near_to_one_rank) {
  const RandomModel file(Format::kF32, Format::kF32, /*seed=*/23);
  LoadedModel whole(file.path(), {});
  const Answers expected = compute_answers(whole);
  const LoadedModelOptions options{
      .workers = 2, .shares = {1, 1, 1}, .strategy = Strategy::kReduce, .bf16_sums = true};
  LoadedModel model(file.path(), options);
  const Answers once = compute_answers(model);
  LoadedModel again(file.path(), options);
  expect_same_bits(once.prompt, compute_answers(again).prompt);
  expect_same_bits(once.prompt, once.among_others);
  const double difference = largest_difference(expected.prompt, once.prompt);
  EXPECT_LE(difference, spread(expected.prompt) * 4 * 2 * 2 * 2 * std::ldexp(1.0, -9));
  EXPECT_GT(difference, spread(expected.prompt) * 1e-5) << "nothing was rounded to bf16";
}

// Two models of one file lie at different addresses, of which their plans know nothing.
TEST(Ranks, have_equal_plans_wherever_their_memory_lies) {
  const RandomModel file(Format::kQ8_0, Format::kF16, /*seed=*/6, {.count = 4, .used = 2});
  const LoadedModelOptions options{.shares = {2, 1}};
  const LoadedModel one(file.path(), options);
  const LoadedModel other(file.path(), options);
  for (size_t rank = 0; rank < 2; ++rank) {
    const Rank& of_one = one.ranks()[rank];
    const Rank& of_other = other.ranks()[rank];
    EXPECT_EQ(of_one.plan(), of_other.plan());
    for (const Arena arena : {Arena::kWeights, Arena::kScratch, Arena::kExchange, Arena::kKv}) {
      EXPECT_NE(of_one.addresses()[arena], of_other.addresses()[arena]);
    }
    EXPECT_EQ(of_one.addresses()[Arena::kLogits], one.ranks()[0].addresses()[Arena::kLogits]);
  }
}

TEST(Ranks, weights_are_held_once_but_for_norms_and_shared_heads) {
  const RandomModel file(Format::kQ8_0, Format::kQ8_0, /*seed=*/5);
  const LoadedModel whole(file.path(), {});
  const LoadedModel four(file.path(), {.shares = {1, 1}});
  size_t held = 0;
  size_t mirrored = 0;
  for (size_t rank = 0; rank < 2; ++rank) held += four.ranks()[rank].plan().weight_bytes;
  for (const Weight& weight : four.model().graph.weights()) {
    if (!weight.is_matrix) mirrored += weight.columns * sizeof(float);
  }
  EXPECT_EQ(held, whole.plan().weight_bytes + mirrored);
}

}  // namespace
}  // namespace lockstep
