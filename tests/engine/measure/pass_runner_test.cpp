// How passes over prompts are cut where measurements run them: on a simulated GPU, by a clock that
// stands still but while it computes.
#include "engine/measure/pass_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <span>
#include <vector>

#include "engine/measure/measurement.h"
#include "tests/engine/kernels/cuda/host_kernels.h"
#include "tests/engine/machine/host_device.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Le;
using ::testing::SizeIs;

// Simulated milliseconds that a pass takes, and each token in it.
struct Cost {
  int64_t pass = 0;
  int64_t token = 0;
};

std::atomic<int64_t> now_ms;
Cost cost;

double now_seconds() {
  return static_cast<double>(now_ms.load()) / 1000;
}

void embed_and_take_time(void* stream, const GpuEmbedding& embedding) {
  now_ms += cost.pass + cost.token * int64_t{embedding.batch.counts->tokens};
  host_kernels().embed_rows(stream, embedding);
}

class PassRunnerTest : public ::testing::Test {
 protected:
  static constexpr size_t kPrompt = 150;
  static constexpr size_t kBatch = 64;

  PassRunnerTest() {
    host_gpu(0).reset();
    kernels_.embed_rows = &embed_and_take_time;
  }

  static GpuPlatform platform_of(const GpuKernels& kernels) {
    GpuPlatform platform = test_gpus();
    platform.kernels = &kernels;
    return platform;
  }

  // The tokens and the duration of each pass, and how many passes were shortened.
  struct Passes {
    std::vector<size_t> tokens;
    std::vector<double> seconds;
    size_t shortened = 0;
  };

  // Runs one prompt. Its last token's logits must have the same bits in any passes.
  Passes passes_of(LoadedModel& loaded) {
    Passes passes;
    std::vector<float> last;
    double before = now_seconds();
    Executor executor(loaded.ranks(), *supported_kernel_tables().front());
    const auto on_pass = [&](const Batch& batch) {
      passes.tokens.push_back(batch.tokens.size());
      passes.seconds.push_back(now_seconds() - before);
      before = now_seconds();
      if (batch.logit_tokens.empty()) return;
      const std::span<const float> row = executor.logits(0).all().value();
      last.assign(row.begin(), row.end());
    };
    PassRunner runner(executor, loaded.plan(), 1, kPrompt, on_pass, &now_seconds);
    for (size_t index = 0; index < kPrompt; ++index) {
      runner.add(0, tokens_[index], index + 1 == kPrompt);
    }
    runner.run();
    EXPECT_TRUE(runner.outcome().has_value());
    EXPECT_EQ(std::reduce(passes.tokens.begin(), passes.tokens.end()), kPrompt);
    expect_same_bits({loaded.compute_alone(tokens_, 50).back()}, {last});
    passes.shortened = runner.shortened_passes();
    return passes;
  }

  Passes passes_that_cost(Cost of_each) {
    LoadedModel loaded(model_.path(), on_gpu());
    cost = of_each;
    return passes_of(loaded);
  }

  LoadedModelOptions on_gpu() const {
    return {.kv_format = KvFormat::kF16, .batch_tokens = kBatch, .gpus = &platform_};
  }

  std::vector<Measurement> measure(LoadedModel& loaded, Cost of_each,
                                   const MeasurementCase& measurement = {.prompt_tokens = kPrompt,
                                                                         .repeats = 2}) {
    cost = of_each;
    Executor executor(loaded.ranks(), *supported_kernel_tables().front());
    const ModelWork work(loaded.model().graph, KvFormat::kF16);
    return run_measurement(executor, loaded.plan(), work, measurement, &now_seconds).value();
  }

  const RandomModel model_{Format::kQ8_0, Format::kQ8_0, /*seed=*/71};
  const std::vector<TokenId> tokens_ = some_tokens(kPrompt, 1);
  GpuKernels kernels_ = host_kernels();
  const GpuPlatform platform_ = platform_of(kernels_);
};

TEST_F(PassRunnerTest, on_gpus_the_first_pass_is_small_and_the_next_ones_are_full) {
  const Passes passes = passes_that_cost({.pass = 100, .token = 1});
  EXPECT_THAT(passes.tokens, ElementsAre(32, 64, 54));
  EXPECT_EQ(passes.shortened, 1U);
}

// A full pass would take 1.14 seconds, and tokens that see more keys are taken to be slower.
TEST_F(PassRunnerTest, on_gpus_no_pass_comes_near_its_deadline) {
  const Passes passes = passes_that_cost({.pass = 500, .token = 10});
  EXPECT_THAT(passes.seconds, Each(Le(1.0)));
  EXPECT_THAT(passes.tokens, ElementsAre(32, 37, 41, 40));
  EXPECT_EQ(passes.shortened, passes.tokens.size() - 1);
  const Passes slowest = passes_that_cost({.pass = 1'000, .token = 10});
  EXPECT_THAT(slowest.tokens, ElementsAre(32, 32, 32, 32, 22));
}

TEST_F(PassRunnerTest, a_depth_of_zeros_takes_no_time) {
  constexpr uint32_t kDepth = 100;
  const auto milliseconds = [&](bool zero_depth) {
    LoadedModel loaded(model_.path(), on_gpu());
    const int64_t start = now_ms;
    measure(loaded, {.pass = 0, .token = 1},
            {.depth_tokens = kDepth, .generated_tokens = 2, .zero_depth = zero_depth});
    return now_ms - start;
  };
  EXPECT_EQ(milliseconds(false) - milliseconds(true), int64_t{kDepth});
}

TEST_F(PassRunnerTest, on_processors_all_passes_are_full) {
  LoadedModel loaded(model_.path(), {.batch_tokens = kBatch});
  const Passes passes = passes_of(loaded);
  EXPECT_THAT(passes.tokens, ElementsAre(64, 64, 22));
  EXPECT_EQ(passes.shortened, 0U);
}

// Even the first repeat is measured with passes of the full size.
TEST_F(PassRunnerTest, prompts_are_measured_once_passes_have_grown) {
  LoadedModel loaded(model_.path(), on_gpu());
  const auto results = measure(loaded, {.pass = 100, .token = 1});
  ASSERT_THAT(results, SizeIs(2));
  for (const Measurement& result : results) {
    EXPECT_NEAR(result.prompt.seconds, 3 * 0.1 + 0.15, 1e-6);
    EXPECT_EQ(result.prompt.shortened_passes, 0U);
  }
}

TEST_F(PassRunnerTest, passes_that_stay_small_are_told_of) {
  LoadedModel loaded(model_.path(), on_gpu());
  const auto results = measure(loaded, {.pass = 1'000, .token = 10});
  ASSERT_THAT(results, SizeIs(2));
  for (const Measurement& result : results) {
    EXPECT_NEAR(result.prompt.seconds, 5 * 1.0 + 1.5, 1e-6);
    EXPECT_EQ(result.prompt.shortened_passes, 4U);
  }
}

}  // namespace
}  // namespace lockstep
