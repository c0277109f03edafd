// Tests who goes next and how much goes into a pass where there are targets.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "tests/engine/scheduler/passes.h"

namespace lockstep {
namespace {

// Passes of a machine: 20 ms each, 1 ms for a generated token, 4 ms for one of a prompt.
class TimedPasses : public Passes {
 public:
  explicit TimedPasses(const LatencyTargets& targets) : Passes(limits(targets), 32) {}

  std::map<SequenceId, Chunk> pass() {
    auto chunks = Passes::pass();
    seconds = 0.02;
    for (const auto& [id, chunk] : chunks) {
      seconds += chunk.generated ? 0.001 : 0.004 * prompt_work(chunk.begin, chunk.count);
    }
    scheduler.add_pass_seconds(seconds);
    now += seconds;
    return chunks;
  }

  // Ends with its first token.
  SequenceId add_prompt(size_t prompt, const NewSequence& asked = {}) {
    const SequenceId id = add(prompt, prompt, asked);
    most[id] = 1;
    return id;
  }

  // Runs prompts beside a stream, which stays, until it is known what passes take.
  void learn() {
    stream = add(8, 3'000);
    const SequenceId long_one = add_prompt(900);
    const SequenceId short_one = add_prompt(100);
    while (most[long_one] > 0 || most[short_one] > 0) pass();
    for (int round = 0; round < 20; ++round) pass();
  }

  double seconds = 0;  // of the last pass
  SequenceId stream = 0;

 private:
  static SchedulerLimits limits(const LatencyTargets& targets) {
    SchedulerLimits limits;
    limits.page_tokens = 4;
    limits.page_count = 10'000;
    limits.sequence_count = 40;
    limits.batch_tokens = 512;
    limits.targets = targets;
    return limits;
  }
};

constexpr LatencyTargets kTargets = {2, 0.5};

// The one of the two that gives its first token before the other.
SequenceId first_of(TimedPasses& passes, SequenceId one, SequenceId other) {
  while (!passes.first_sampled.contains(one) && !passes.first_sampled.contains(other)) {
    passes.pass();
  }
  return passes.first_sampled.contains(one) ? one : other;
}

TEST(Targets, of_a_tenants_prompts_the_short_one_goes_first) {
  for (const LatencyTargets& targets : {kTargets, LatencyTargets()}) {
    TimedPasses passes(targets);
    passes.learn();
    const SequenceId long_one = passes.add_prompt(200, of_tenant("a"));
    const SequenceId short_one = passes.add_prompt(120, of_tenant("a"));
    EXPECT_EQ(first_of(passes, long_one, short_one), targets.any() ? short_one : long_one);
  }
}

// A prompt that finds pages while another computes them does not go before it.
TEST(Targets, equal_prompts_are_computed_once) {
  TimedPasses passes(kTargets);
  passes.learn();
  const uint64_t before = passes.scheduler.counters().prefix_hit_tokens;
  std::vector<SequenceId> equal;
  for (int count = 0; count < 4; ++count) {
    equal.push_back(passes.add(198, 198, {}, 500'000));
    passes.most[equal.back()] = 1;
  }
  while (passes.most[equal.front()] > 0 || passes.most[equal.back()] > 0) passes.pass();
  EXPECT_EQ(passes.scheduler.counters().prefix_hit_tokens - before, 3 * 196U);
}

// Each of the short ones is shorter, but in the end the long one came too much earlier.
TEST(Targets, a_long_prompt_is_not_overtaken_for_ever) {
  TimedPasses passes(kTargets);
  passes.learn();
  const double own_seconds = 0.004 * prompt_work(0, 600);
  const double begin = passes.now;
  const SequenceId long_one = passes.add_prompt(600, of_tenant("a"));
  std::set<SequenceId> short_ones;
  while (!passes.first_sampled.contains(long_one)) {
    while (short_ones.size() < 3) {
      short_ones.insert(passes.add_prompt(120, of_tenant("a")));
    }
    passes.pass();
    ASSERT_LT(passes.now - begin, 60) << "until then it is not the senior";
    std::erase_if(short_ones, [&](SequenceId id) { return passes.most[id] == 0; });
  }
  EXPECT_GT(passes.now - begin, own_seconds);
  EXPECT_LT(passes.now - begin, (kOvertaking + 4) * own_seconds);
}

// Another tenant's long prompt came before: it had its turn first, and has it still.
TEST(Targets, a_short_prompt_takes_no_other_tenants_turn) {
  TimedPasses passes(kTargets);
  passes.learn();
  const SequenceId other = passes.add_prompt(200, of_tenant("b"));
  const SequenceId long_one = passes.add_prompt(200, of_tenant("a"));
  const SequenceId short_one = passes.add_prompt(120, of_tenant("a"));
  EXPECT_EQ(first_of(passes, other, short_one), other);
  EXPECT_EQ(first_of(passes, short_one, long_one), short_one);
}

TEST(Targets, chunks_beside_streams_are_small_until_many_wait) {
  TimedPasses passes(kTargets);
  passes.learn();
  const SequenceId alone = passes.add_prompt(100);
  const auto few = passes.pass();
  EXPECT_EQ(few.at(alone).count, kPromptChunkLeast);
  for (int index = 0; index < 12; ++index) passes.add_prompt(100);
  passes.pass();
  EXPECT_GT(passes.seconds, 0.4);
  EXPECT_LT(passes.seconds, 0.55);
}

TEST(Targets, streams_get_their_tokens_in_time_whatever_waits) {
  TimedPasses passes(kTargets);
  passes.learn();
  for (int index = 0; index < 30; ++index) passes.add_prompt(300);
  for (int pass = 0; pass < 40; ++pass) {
    EXPECT_TRUE(passes.pass().contains(passes.stream));
    EXPECT_LT(passes.seconds, 0.55);
  }
}

TEST(Targets, prompts_of_a_worse_priority_do_not_slow_streams) {
  TimedPasses passes(kTargets);
  passes.learn();
  for (int index = 0; index < 12; ++index) passes.add_prompt(100, of_tenant("", 5));
  passes.pass();
  EXPECT_LT(passes.seconds, 0.2);
}

}  // namespace
}  // namespace lockstep
