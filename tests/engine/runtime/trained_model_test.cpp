// The bundled model, which is trained, against the continuations of an independent reference.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/sampling/sampler.h"
#include "tests/engine/runtime/continuations.h"
#include "tests/engine/runtime/loaded_model.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

const std::string kModel = source_dir() + "/config/demo.gguf";

// With tiles prompts attend in bf16, of which each weight and value has 8 bits.
double tolerance_of(const KernelTable& table, double without_tiles) {
  return table.has_tiles ? 6e-2 : without_tiles;
}

TEST(TrainedModel, continuations_and_their_logprobs_are_those_of_the_reference) {
  const auto continuations = read_continuations();
  ASSERT_EQ(continuations.size(), 8U);
  for (const KernelTable* table : supported_kernel_tables()) {
    for (const size_t workers : {1U, 2U}) {
      SCOPED_TRACE(std::string(table->name) + ", " + std::to_string(workers) + " workers");
      LoadedModel loaded(kModel, {.kernels = table, .workers = workers});
      const ContinuationLimits limits = {.steps = workers == 1 ? 48U : 6U,
                                         .tolerance = tolerance_of(*table, 1e-4)};
      for (const auto& expected : continuations) expect_continuation(loaded, expected, limits);
    }
  }
}

TEST(TrainedModel, a_narrower_cache_changes_logprobs_by_less_than_a_hundredth) {
  for (const KernelTable* table : supported_kernel_tables()) {
    SCOPED_TRACE(table->name);
    LoadedModel loaded(kModel, {.kernels = table, .kv_format = KvFormat::kF16});
    for (const auto& expected : read_continuations()) {
      expect_continuation(loaded, expected, {.steps = 12, .tolerance = tolerance_of(*table, 1e-2)});
    }
  }
}

// The text that the model continues `first` with, by its likeliest tokens.
std::vector<TokenId> greedy_text(LoadedModel& loaded, TokenId first, size_t count) {
  LoadedModel::Sequence sequence = loaded.new_sequence(count);
  std::vector<TokenId> text = {first};
  while (text.size() < count) {
    const std::vector<TokenId> last = {text.back()};
    const std::vector<LoadedModel::Piece> pieces = {{sequence, last}};
    text.push_back(compute_logprobs(loaded.compute(pieces).back(), 0, 1).top.at(0).token);
  }
  return text;
}

// The mean distance between what two caches make of the text's log-probabilities.
double mean_distance(const std::vector<TokenId>& text, const std::vector<std::vector<float>>& a,
                     const std::vector<std::vector<float>>& b) {
  double sum = 0;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    sum += std::fabs(compute_logprobs(a[i], text[i + 1], 0).logprob -
                     compute_logprobs(b[i], text[i + 1], 0).logprob);
  }
  return sum / static_cast<double>(text.size() - 1);
}

// The bundled model, whose heads have 64 dimensions. An element of q8_0 is off by scale / sqrt(12)
// in the mean square, where the scale is a 127th of the greatest of 32, about 2.4 deviations:
// 0.0055 deviations. One of bf16 is off by 2^-7 / sqrt(12) times the power of 2 below it: about
// 0.0016. So the results of q8_0 are some 3.4 times as far away; twice that is allowed.
TEST(BundledModel, with_keys_and_values_in_q8_0_is_as_near_as_their_rounding_lets_it) {
  constexpr size_t kTokens = 300;
  const auto load = [&](KvFormat format) {
    return LoadedModel(kModel, {.workers = 2, .kv_format = format});
  };
  LoadedModel exact = load(KvFormat::kF32);
  const std::vector<TokenId> text = greedy_text(exact, 0, kTokens);
  const auto expected = exact.compute_alone(text, 128);
  const auto distance = [&](KvFormat format) {
    return mean_distance(text, expected, load(format).compute_alone(text, 128));
  };
  const double bf16 = distance(KvFormat::kBf16);
  const double q8_0 = distance(KvFormat::kQ8_0);
  EXPECT_GT(q8_0, bf16);
  EXPECT_LT(q8_0, 6.8 * bf16);
  RecordProperty("q8_0_over_bf16", std::to_string(q8_0 / bf16));
}

// Steps of 4 bits are 16 times as wide as those of 8, and so are the distances, were they all
// proportional: half as much again is allowed, and turned keys alone or values alone are no farther
// than both by as much. A head that is turned and not turned back gives another text altogether.
TEST(BundledModel, with_keys_and_values_of_4_bits_is_as_near_as_their_steps_let_it) {
  constexpr size_t kTokens = 300;
  const auto load = [&](const KvFormats& format) {
    return LoadedModel(kModel, {.workers = 2, .kv_format = format});
  };
  LoadedModel exact = load(KvFormat::kF32);
  const std::vector<TokenId> text = greedy_text(exact, 0, kTokens);
  const auto expected = exact.compute_alone(text, 128);
  const auto distance = [&](const KvFormats& format) {
    return mean_distance(text, expected, load(format).compute_alone(text, 128));
  };
  const double q8_0 = distance(KvFormat::kQ8_0);
  for (const KvFormat format : {KvFormat::kQ4_0, KvFormat::kQ4H}) {
    const double both = distance(format);
    EXPECT_GT(both, q8_0);
    EXPECT_LT(both, 24 * q8_0);
    if (!turns_heads(format)) continue;
    EXPECT_LT(distance({format, KvFormat::kF32}), both * 1.5);
    EXPECT_LT(distance({KvFormat::kF32, format}), both * 1.5);
  }
}

}  // namespace
}  // namespace lockstep
