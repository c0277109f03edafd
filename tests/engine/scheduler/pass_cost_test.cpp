// Tests what is learnt of passes' times, and how targets share a pass by it.
#include "engine/scheduler/pass_cost.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <random>
#include <vector>

#include "engine/scheduler/latency_targets.h"

namespace lockstep {
namespace {

// A machine's passes, in seconds.
struct Machine {
  double pass = 0.03;
  double generated = 0.0035;
  double prompts = 0.01;
  double work = 0.0036;

  double seconds(const PassLoad& load) const {
    return pass + generated * static_cast<double>(load.generated) +
           (load.prompt_work > 0 ? prompts + work * load.prompt_work : 0);
  }
};

// Passes as serving has them: streams come and go, prompts of many lengths beside most of them.
void add_passes(PassCost& cost, const Machine& machine, size_t count, uint64_t seed = 1,
                double noise = 0) {
  std::mt19937_64 random(seed);
  const auto pick = [&](size_t below) { return static_cast<size_t>(random() % below); };
  for (size_t pass = 0; pass < count; ++pass) {
    const PassLoad load = {pick(33), pick(3) == 0 ? 0 : static_cast<double>(32 + pick(400))};
    const double late = 1 + noise * static_cast<double>(pick(1000)) / 1000;
    cost.add(load, machine.seconds(load) * late);
  }
}

constexpr std::array<PassLoad, 6> kLoads = {
    {{1, 0}, {32, 0}, {0, 400}, {1, 32}, {16, 100}, {32, 400}}};

TEST(PassCost, nothing_is_known_before_the_first_pass) {
  const PassCost cost;
  EXPECT_EQ(cost.seconds({8, 100}), 0);
  EXPECT_EQ(cost.work_within(1, 0), 0);
}

// Twice the work is then expected to take twice as long, and not less.
TEST(PassCost, all_of_the_time_of_a_first_pass_is_its_prompts) {
  PassCost cost;
  cost.add({0, 32}, 0.16);
  EXPECT_DOUBLE_EQ(cost.seconds({0, 64}), 0.32);
  EXPECT_DOUBLE_EQ(cost.work_within(0.1, 8), 20);
}

TEST(PassCost, the_parts_are_learnt_from_passes_of_all_kinds) {
  for (const Machine& machine : {Machine(), Machine{0.02, 0.0001, 0.15, 0.00027}}) {
    PassCost cost;
    add_passes(cost, machine, 200);
    for (const PassLoad& load : kLoads) {
      EXPECT_NEAR(cost.seconds(load) / machine.seconds(load), 1, 0.05)
          << load.generated << " generated, " << load.prompt_work << " of prompts";
    }
    const double within = cost.work_within(machine.seconds({16, 100}), 16);
    EXPECT_NEAR(within, 100, 5);
    EXPECT_NEAR(cost.prompt_overhead() / machine.prompts, 1, 0.1);
  }
}

TEST(PassCost, times_that_vary_are_met_in_the_mean) {
  const Machine machine;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    PassCost cost;
    add_passes(cost, machine, 200, seed, 0.4);
    for (const PassLoad& load : {PassLoad{16, 100}, PassLoad{32, 400}}) {
      EXPECT_NEAR(cost.seconds(load) / machine.seconds(load), 1.2, 0.2) << "seed " << seed;
    }
  }
}

TEST(PassCost, streams_alone_do_not_make_prompts_forgotten) {
  const Machine machine;
  PassCost cost;
  add_passes(cost, machine, 200);
  for (int pass = 0; pass < 100'000; ++pass) cost.add({4, 0}, machine.seconds({4, 0}));
  EXPECT_NEAR(cost.seconds({4, 200}) / machine.seconds({4, 200}), 1, 0.05);
}

TEST(PassCost, a_machine_that_has_become_slower_is_learnt_anew) {
  PassCost cost;
  add_passes(cost, {}, 200);
  const Machine slow = {0.09, 0.01, 0.03, 0.011};
  add_passes(cost, slow, 200);
  for (const PassLoad& load : kLoads) {
    EXPECT_NEAR(cost.seconds(load) / slow.seconds(load), 1, 0.1);
  }
}

TEST(PassCost, one_pass_that_was_held_up_changes_little) {
  const Machine machine;
  PassCost cost;
  add_passes(cost, machine, 200);
  cost.add({16, 100}, 60);
  EXPECT_LT(cost.seconds({16, 100}), 1.2 * machine.seconds({16, 100}));
}

TEST(PassCost, no_chunk_is_more_than_twice_what_was_measured) {
  PassCost cost;
  cost.add({0, 32}, 0.001);
  EXPECT_EQ(cost.work_within(10, 0), 64);
}

class LatencyTargetsTest : public testing::Test {
 protected:
  LatencyTargetsTest() { add_passes(cost_, machine_, 400); }

  // The time of the pass that the targets allow.
  double seconds(size_t streams, const std::vector<double>& waiting) const {
    return machine_.seconds({streams, targets_.prompt_work(cost_, streams, waiting)});
  }

  const Machine machine_ = {};
  PassCost cost_;
  const LatencyTargets targets_ = {2, 0.5};
};

// 150 take 0.54 s of the second in which prompts are to end; 4,000 take 14 s.
TEST_F(LatencyTargetsTest, a_pass_is_as_long_as_lets_prompts_end_in_time) {
  EXPECT_NEAR(seconds(16, {150}), machine_.seconds({16, 0}) / (1 - 0.54), 0.02);
  EXPECT_NEAR(seconds(16, {4'000}), 2 * machine_.seconds({16, 0}), 0.02);
}

TEST_F(LatencyTargetsTest, a_pass_takes_at_least_the_fluent_time) {
  EXPECT_NEAR(seconds(1, {100}), kFluentSeconds, 0.01);
}

TEST_F(LatencyTargetsTest, where_many_wait_it_is_as_long_as_streams_may_wait) {
  EXPECT_NEAR(seconds(8, std::vector<double>(8, 100)), 0.5, 0.02);
  EXPECT_NEAR(seconds(32, {4'000, 4'000}), 0.5, 0.02);
}

TEST_F(LatencyTargetsTest, without_streams_it_is_what_the_next_prompt_may_wait) {
  EXPECT_NEAR(seconds(0, {4'000}), 1, 0.05);
}

TEST_F(LatencyTargetsTest, streams_that_take_all_of_the_time_leave_none) {
  EXPECT_EQ(targets_.prompt_work(cost_, 140, std::vector<double>(8, 100)), 0);
}

// As on GPUs, which unpack the weights for any prompt.
TEST(LatencyTargets, half_of_what_prompts_add_is_their_own_work) {
  const Machine machine = {0.02, 0.0001, 0.15, 0.00027};
  PassCost cost;
  add_passes(cost, machine, 400);
  const LatencyTargets targets = {2, 0.5};
  const double work = targets.prompt_work(cost, 1, std::vector<double>{2'000});
  EXPECT_NEAR(work * machine.work, machine.prompts, 0.02);
}

}  // namespace
}  // namespace lockstep
