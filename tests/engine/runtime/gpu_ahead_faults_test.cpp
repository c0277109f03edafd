// GPUs that fail while a pass has begun ahead of the last one's end. They are simulated: they run
// what they are given as late as may be, hang, and are lost at any call.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <thread>

#include "tests/engine/machine/host_device.h"
#include "tests/engine/runtime/gpu_rank_case.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/two_passes.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

class GpuAheadFaults : public ::testing::Test {
 protected:
  ~GpuAheadFaults() override { host_gpu(0).reset(); }

  RandomModel model_{Format::kQ8_0, Format::kQ8_0, /*seed=*/73};
};

// Two passes; which calls have succeeded, and the first error.
struct Outcome {
  size_t done = 0;
  std::string error;
};

Outcome run_two(LoadedModel& loaded) {
  TwoPasses passes(loaded, 2, 2);
  Executor& executor = loaded.executor();
  const Batch first = passes.next(passes.first_tokens(), /*picks_rows=*/false);
  const Batch second = passes.next({}, /*picks_rows=*/true);
  Outcome outcome;
  const auto note = [&](const auto& result) {
    if (result) {
      ++outcome.done;
    } else if (outcome.error.empty()) {
      outcome.error = result.error().message;
    }
    return result.has_value();
  };
  if (!note(executor.begin(first))) return outcome;
  if (!note(executor.begin_ahead(second))) return outcome;
  if (!note(executor.finish())) return outcome;
  note(executor.finish());
  return outcome;
}

TEST_F(GpuAheadFaults, streams_that_run_late_change_nothing) {
  std::vector<std::vector<PickedRow>> rows[2];
  for (const bool late : {false, true}) {
    LoadedModel loaded(model_.path(), on_gpu());
    host_gpu(0).run_late(late);
    TwoPasses passes(loaded, 3, 3);
    Executor& executor = loaded.executor();
    Batch batch = passes.next(passes.first_tokens(), /*picks_rows=*/false);
    ASSERT_TRUE(executor.begin(batch).has_value());
    for (const bool is_last : {false, false, true}) {
      Batch next;
      if (!is_last) {
        next = passes.next({}, /*picks_rows=*/true);
        ASSERT_TRUE(executor.begin_ahead(next).has_value());
      }
      ASSERT_TRUE(executor.finish().has_value());
      rows[late ? 1 : 0].push_back(passes.rows(batch));
      batch = std::move(next);
    }
    host_gpu(0).run_late(false);
  }
  EXPECT_EQ(rows[0], rows[1]);
}

// Whichever call it is: both passes end, and nothing more is asked of the GPU.
TEST_F(GpuAheadFaults, a_gpu_that_is_lost_at_any_call_fails_one_of_both_passes) {
  size_t calls = 0;
  bool is_through = false;
  for (; !is_through; ++calls) {
    ASSERT_LT(calls, 100U);
    {
      LoadedModel loaded(model_.path(), on_gpu());
      host_gpu(0).lose(calls);
      const Outcome outcome = run_two(loaded);
      is_through = outcome.done == 4;
      EXPECT_EQ(outcome.error.empty(), is_through);
      if (!is_through) {
        EXPECT_NE(outcome.error.find("the GPU is lost"), std::string::npos) << outcome.error;
        const size_t before = host_gpu(0).counts().calls;
        EXPECT_EQ(run_two(loaded).done, 0U);
        EXPECT_EQ(host_gpu(0).counts().calls, before);
      }
    }
    host_gpu(0).reset();
  }
  // Begin: use, copy, launch. Ahead: one more, the event. Two waits.
  EXPECT_EQ(calls - 1, 3U + 4U + 2U);
}

// The time that a wait was given, as its failure says.
std::chrono::nanoseconds told_deadline(const std::string& message) {
  const size_t found = message.find("within ");
  EXPECT_NE(found, std::string::npos) << message;
  return std::chrono::nanoseconds(std::stoll(message.substr(found + 7)));
}

// A pass that waits behind another one for long has all of its time nevertheless. No more, though.
TEST_F(GpuAheadFaults, the_deadline_of_a_pass_ahead_counts_from_the_end_of_the_one_before) {
  LoadedModel loaded(model_.path(), on_gpu());
  Executor& executor = loaded.executor();
  TwoPasses passes(loaded, 2, 2);
  const Batch first = passes.next(passes.first_tokens(), /*picks_rows=*/false);
  ASSERT_TRUE(executor.begin(first).has_value());
  ASSERT_TRUE(executor.begin_ahead(passes.next({}, /*picks_rows=*/true)).has_value());
  const Clock::time_point begun = Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const Clock::time_point before_end = Clock::now();
  ASSERT_TRUE(executor.finish().has_value());
  const Clock::time_point ended = Clock::now();
  host_gpu(0).hang(std::chrono::nanoseconds(1));
  const auto failed = executor.finish();
  const Clock::time_point told = Clock::now();
  ASSERT_FALSE(failed.has_value());
  const auto deadline = told_deadline(failed.error().message);
  EXPECT_GE(deadline, GpuSettings::kPassDeadline - (told - before_end));
  EXPECT_LE(deadline, GpuSettings::kPassDeadline);
  // Unless this machine has stood still for as long, another count would have been noticed.
  EXPECT_TRUE(begun < before_end && before_end <= ended);
}

TEST_F(GpuAheadFaults, a_gpu_that_hangs_in_the_first_of_both_fails_it) {
  LoadedModel loaded(model_.path(), on_gpu());
  host_gpu(0).hang(std::chrono::nanoseconds(1));
  const Outcome outcome = run_two(loaded);
  EXPECT_EQ(outcome.done, 2U);
  EXPECT_NE(outcome.error.find("was not done within"), std::string::npos) << outcome.error;
}

// Between two passes, with nothing but what they leave.
TEST_F(GpuAheadFaults, a_pass_that_begins_ahead_allocates_nothing_and_plays_its_recording) {
  LoadedModel loaded(model_.path(), on_gpu());
  EXPECT_EQ(run_two(loaded).done, 4U);
  const HostGpu::Counts before = host_gpu(0).counts();
  EXPECT_EQ(run_two(loaded).done, 4U);
  const HostGpu::Counts after = host_gpu(0).counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.graph_launches - before.graph_launches, 2U);
  EXPECT_EQ(after.copies - before.copies, 2U);
}

}  // namespace
}  // namespace lockstep
