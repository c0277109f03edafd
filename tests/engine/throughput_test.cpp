#include "engine/throughput.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Throughput, before_the_first_pass_prompts_are_cut_short) {
  const Throughput throughput;
  EXPECT_EQ(throughput.tokens_per_second(), 0);
  EXPECT_EQ(throughput.prompt_tokens_most(), 32U);
  EXPECT_EQ(throughput.prompt_tokens_beside_streams(), 32U);
  EXPECT_EQ(throughput.seconds_until_room(100, 1000), 1);
}

TEST(Throughput, prompts_beside_streams_take_a_tenth_of_a_second) {
  Throughput throughput;
  throughput.add_pass(512, 0.25);
  EXPECT_EQ(throughput.prompt_tokens_beside_streams(), 204U);
  EXPECT_EQ(throughput.prompt_tokens_most(), 8192U);
  throughput.add_pass(8, 0.02);  // of streams alone: says nothing of prompts
  EXPECT_EQ(throughput.prompt_tokens_beside_streams(), 204U);
}

TEST(Throughput, a_slow_model_still_gets_chunks_worth_reading_the_weights_for) {
  Throughput throughput;
  throughput.add_pass(64, 10);
  EXPECT_EQ(throughput.prompt_tokens_beside_streams(), 32U);
  EXPECT_EQ(throughput.prompt_tokens_most(), 32U);
}

// A pass that is given four seconds and takes them has failed.
TEST(Throughput, prompts_stay_far_from_a_passs_deadline) {
  Throughput throughput(std::chrono::seconds(4));
  throughput.add_pass(512, 0.25);
  EXPECT_EQ(throughput.prompt_tokens_most(), 2048U);
  EXPECT_EQ(throughput.prompt_tokens_beside_streams(), 204U);
  Throughput patient(std::chrono::seconds(60));
  patient.add_pass(512, 0.25);
  EXPECT_EQ(patient.prompt_tokens_most(), 8192U);
}

// Reading the weights takes 40 ms however few tokens a pass has, a token 0.2 ms.
TEST(Throughput, the_chunk_settles_where_a_pass_takes_a_tenth_of_a_second) {
  Throughput throughput;
  size_t tokens = 512;
  for (int pass = 0; pass < 40; ++pass) {
    throughput.add_pass(tokens, 0.04 + 0.0002 * static_cast<double>(tokens));
    tokens = throughput.prompt_tokens_beside_streams();
  }
  EXPECT_NEAR(static_cast<double>(tokens), 300, 3);
}

}  // namespace
}  // namespace lockstep
