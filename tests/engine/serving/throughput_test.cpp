#include "engine/serving/throughput.h"

#include <gtest/gtest.h>

#include "engine/scheduler/scheduler.h"

namespace lockstep {
namespace {

TEST(Throughput, before_the_first_pass_prompts_are_cut_short) {
  const Throughput throughput;
  EXPECT_EQ(throughput.tokens_per_second(), 0);
  EXPECT_EQ(throughput.prompts_most().alone, 32U);
  EXPECT_EQ(throughput.prompts_most().beside_streams, 32U);
  EXPECT_EQ(throughput.seconds_until_space(100, 1000), 1);
}

TEST(Throughput, prompts_beside_streams_take_a_tenth_of_a_second) {
  Throughput throughput;
  throughput.add_pass({512}, 0.25);
  EXPECT_EQ(throughput.prompts_most().beside_streams, 204U);
  EXPECT_EQ(throughput.prompts_most().alone, 8192U);
  throughput.add_pass({8}, 0.02);  // of streams alone: says nothing of prompts
  EXPECT_EQ(throughput.prompts_most().beside_streams, 204U);
}

TEST(Throughput, a_slow_model_still_gets_chunks_worth_reading_the_weights_for) {
  Throughput throughput;
  throughput.add_pass({64}, 10);
  EXPECT_EQ(throughput.prompts_most().beside_streams, 32U);
  EXPECT_EQ(throughput.prompts_most().alone, 32U);
}

// A pass of prompted tokens alone, from a sequence's `begin` on.
PassTokens prompted(size_t tokens, size_t begin = 0) {
  return {tokens, tokens, prompt_work(begin, tokens)};
}

// A pass that is given four seconds and takes them has failed.
TEST(Throughput, prompts_stay_far_from_a_passs_deadline) {
  Throughput throughput(std::chrono::seconds(4));
  throughput.add_pass(prompted(32), 0.05);
  throughput.add_pass(prompted(512), 0.25);
  EXPECT_EQ(throughput.prompts_most().alone, 2048U);
  EXPECT_EQ(throughput.prompts_most().beside_streams, 204U);
  Throughput patient(std::chrono::seconds(60));
  patient.add_pass(prompted(32), 0.05);
  patient.add_pass(prompted(512), 0.25);
  EXPECT_EQ(patient.prompts_most().alone, 8192U);
}

// Reading the weights takes 40 ms however few tokens a pass has, a token 0.2 ms.
TEST(Throughput, the_chunk_settles_where_a_pass_takes_a_tenth_of_a_second) {
  Throughput throughput;
  size_t tokens = 512;
  for (int pass = 0; pass < 40; ++pass) {
    throughput.add_pass({tokens}, 0.04 + 0.0002 * static_cast<double>(tokens));
    tokens = throughput.prompts_most().beside_streams;
  }
  EXPECT_NEAR(static_cast<double>(tokens), 300, 3);
}

// A GPU unpacks the whole model for any prompted token: 150 ms, and 0.27 ms for the token itself.
TEST(Throughput, the_chunk_settles_where_half_of_a_gpus_pass_is_the_tokens_own) {
  Throughput throughput(std::chrono::seconds(4));
  const auto compute = [&](size_t tokens) {
    throughput.add_pass(prompted(tokens), 0.15 + 0.00027 * static_cast<double>(tokens));
  };
  EXPECT_EQ(throughput.prompts_most().beside_streams, 32U);
  for (int pass = 0; pass < 40; ++pass) compute(throughput.prompts_most().beside_streams);
  const auto settled = static_cast<double>(throughput.prompts_most().beside_streams);
  EXPECT_NEAR(settled, 0.15 / 0.00027, 80);
  // A prompt's end says nothing of what others begin with.
  compute(40);
  EXPECT_NEAR(static_cast<double>(throughput.prompts_most().beside_streams), settled, 80);
}

TEST(Throughput, passes_that_take_longer_than_they_did_are_made_smaller) {
  Throughput throughput(std::chrono::seconds(4));
  throughput.add_pass(prompted(32), 0.02);
  throughput.add_pass(prompted(400), 0.1);
  EXPECT_EQ(throughput.prompts_most().beside_streams, 400U);
  throughput.add_pass(prompted(400), 0.2);
  EXPECT_EQ(throughput.prompts_most().beside_streams, 200U);
  // And where even the smallest take longer, they are not cut smaller and smaller.
  for (int pass = 0; pass < 4; ++pass) throughput.add_pass(prompted(32), 0.2);
  throughput.add_pass(prompted(400), 0.4);
  EXPECT_EQ(throughput.prompts_most().beside_streams, 400U);
}

// The time of 512 tokens at a sequence's beginning says nothing of 512 that see 128 Ki keys each.
TEST(Throughput, the_first_chunk_deep_in_a_prompt_is_small_and_the_next_ones_grow) {
  constexpr size_t kDepth = 128 * 1024;
  Throughput throughput(std::chrono::seconds(4));
  throughput.add_pass(prompted(512), 0.1);
  const auto chunk = [&] {
    return prompt_tokens_within(throughput.prompts_most().work_alone, kDepth, 2048);
  };
  EXPECT_EQ(throughput.prompts_most().alone, 5120U);
  size_t tokens = chunk();
  EXPECT_LT(tokens, 64U);
  for (int pass = 0; pass < 20; ++pass) {
    const double seconds = 0.01 + 0.002 * static_cast<double>(tokens);
    EXPECT_LE(seconds, 1.01);
    throughput.add_pass(prompted(tokens, kDepth), seconds);
    tokens = chunk();
  }
  EXPECT_GT(tokens, 480U);
  // Short prompts are not held up by it.
  EXPECT_GE(throughput.prompts_most().alone, 480U);
}

TEST(Throughput, of_gpus_generated_tokens_say_nothing_of_prompts) {
  Throughput throughput(std::chrono::seconds(4));
  throughput.add_pass({64}, 0.02);
  EXPECT_EQ(throughput.prompts_most().alone, 32U);
  EXPECT_EQ(throughput.tokens_per_second(), 3200);
  throughput.add_pass(prompted(32), 0.05);
  throughput.add_pass(prompted(512), 0.25);
  throughput.add_pass({64}, 0.5);
  EXPECT_EQ(throughput.prompts_most().beside_streams, 204U);
}

}  // namespace
}  // namespace lockstep
