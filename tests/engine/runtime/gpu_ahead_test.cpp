// Passes that begin on a GPU before the tokens of the one before are known. Simulated GPUs, or
// those of the machine.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/runtime/gpu_rank_case.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/two_passes.h"

namespace lockstep {
namespace {

constexpr size_t kPasses = 7;

class GpuAhead : public OnTestGpus {};

using Passed = std::vector<std::vector<PickedRow>>;

Passed one_by_one(LoadedModel& loaded, size_t sequences) {
  TwoPasses passes(loaded, sequences, kPasses);
  std::vector<TokenId> tokens = passes.first_tokens();
  Passed passed;
  for (size_t pass = 0; pass < kPasses; ++pass) {
    const Batch batch = passes.next(tokens, /*picks_rows=*/false);
    EXPECT_TRUE(loaded.executor().run(batch).has_value());
    passed.push_back(passes.rows(batch));
    for (size_t row = 0; row < sequences; ++row) tokens[row] = passed.back()[row].pick;
  }
  return passed;
}

// The results of a pass are read when the next one runs, and before it is waited for.
Passed ahead(LoadedModel& loaded, size_t sequences) {
  TwoPasses passes(loaded, sequences, kPasses);
  Executor& executor = loaded.executor();
  EXPECT_TRUE(executor.begins_ahead());
  Passed passed;
  Batch batch = passes.next(passes.first_tokens(), /*picks_rows=*/false);
  EXPECT_TRUE(executor.begin(batch).has_value());
  for (size_t pass = 0; pass < kPasses; ++pass) {
    Batch next;
    if (pass + 1 < kPasses) {
      next = passes.next({}, /*picks_rows=*/true);
      const auto begun = executor.begin_ahead(next);
      EXPECT_TRUE(begun.has_value() && *begun);
    }
    EXPECT_TRUE(executor.finish().has_value());
    passed.push_back(passes.rows(batch));
    batch = std::move(next);
  }
  return passed;
}

TEST_F(GpuAhead, picks_and_logits_are_those_of_passes_that_wait) {
  const RandomModel model(Format::kQ8_0, Format::kQ4_0, /*seed=*/71);
  for (const size_t sequences : {1U, 3U}) {
    LoadedModel loaded(model.path(), on_gpu());
    EXPECT_EQ(one_by_one(loaded, sequences), ahead(loaded, sequences));
  }
}

TEST_F(GpuAhead, only_one_gpu_that_computes_alone_and_may_do_so_begins_ahead) {
  const RandomModel model(Format::kQ8_0, Format::kQ8_0, /*seed=*/72);
  GpuPlatform waiting = test_gpus();
  waiting.settings.pass_ahead = false;
  LoadedModelOptions options = on_gpu();
  options.gpus = &waiting;
  LoadedModel alone(model.path(), options);
  EXPECT_FALSE(alone.executor().begins_ahead());
  TwoPasses passes(alone, 1, 2);
  const Batch first = passes.next(passes.first_tokens(), /*picks_rows=*/false);
  ASSERT_TRUE(alone.executor().begin(first).has_value());
  const auto begun = alone.executor().begin_ahead(passes.next({}, /*picks_rows=*/true));
  ASSERT_TRUE(begun.has_value());
  EXPECT_FALSE(*begun);
  EXPECT_TRUE(alone.executor().finish().has_value());
  options = on_gpu();
  options.shares = {1, 1};
  options.strategy = Strategy::kReduce;
  LoadedModel two(model.path(), options);
  EXPECT_FALSE(two.executor().begins_ahead());
}

}  // namespace
}  // namespace lockstep
