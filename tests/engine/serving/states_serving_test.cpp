// An engine whose model keeps states: whatever happens to a request beside others, and whatever the
// prefix cache has of it, its answer has the bits of one alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/activation.h"
#include "engine/placement/memory_fit.h"
#include "tests/engine/engine_fixture.h"

namespace lockstep {
namespace {

class StatesServingTest : public EngineTest {
 protected:
  StatesServingTest() { options_.model = source_dir() + "/tests/fixtures/families/lfm2.gguf"; }

  struct Heard {
    std::string text;
    std::vector<float> logprobs;

    bool operator==(const Heard&) const = default;
  };
  static Heard heard(Answer& answer) {
    EXPECT_EQ(answer.wait(), FinishReason::kLength);
    Heard result{answer.text(), {}};
    for (const OutputToken& token : answer.tokens()) result.logprobs.push_back(token.logprob);
    return result;
  }
  // By number: prompts and answers of other lengths, some prompts beginning alike; prompts of two
  // pages or three grow over one border or two.
  Request nth(size_t number) {
    const std::string head(150 + number % 3 * 25, static_cast<char>('a' + number % 2));
    Request asked = request(head + " tail " + std::to_string(number),
                            static_cast<uint32_t>(100 - number % 4 * 9), number);
    asked.logprobs = 0;
    asked.priority = static_cast<int32_t>(number % 3);  // some step aside for others
    return asked;
  }
  // The same with nothing in the cache that it could find.
  Heard alone(Request asked) {
    asked.cache_salt = "alone " + std::to_string(salts_++);
    Answer answer;
    submit(std::move(asked), answer);
    const Heard result = heard(answer);
    EXPECT_EQ(answer.cached(), 0U);
    return result;
  }
  // With what is cached of it.
  uint32_t expect_as_alone(const Request& asked) {
    const Heard expected = alone(asked);
    Answer answer;
    submit(asked, answer);
    EXPECT_EQ(heard(answer), expected);
    return answer.cached();
  }
  Request of_tokens(std::vector<TokenId> prompt, uint32_t max_tokens = 4) {
    Request asked = request("", max_tokens);
    asked.prompt = std::move(prompt);
    asked.logprobs = 0;
    return asked;
  }
  // By what follows its first `same` tokens.
  static std::vector<TokenId> some_prompt(size_t same, size_t count, uint32_t others) {
    std::mt19937 random(3);
    std::vector<TokenId> tokens;
    for (size_t token = 0; token < count; ++token) {
      if (token == same) random.seed(others);
      tokens.push_back(static_cast<TokenId>(3 + random() % 90));
    }
    return tokens;
  }

  size_t salts_ = 0;
};

constexpr size_t kStateRequests = 12;

TEST_F(StatesServingTest, answers_beside_others_with_few_pages_have_the_bits_of_those_alone) {
  options_.context_tokens = 320;
  std::vector<Heard> expected;
  for (size_t number = 0; number < kStateRequests; ++number) expected.push_back(alone(nth(number)));
  for (const uint32_t ranks : {1U, 2U}) {
    engine_.reset();
    options_.rank_count = ranks;
    options_.worker_count = 1;
    options_.kv_pages = 7;  // of sequences of up to five
    options_.sequence_count = 3;
    options_.batch_tokens = 24;
    std::array<Answer, kStateRequests> answers;
    NewsGate gate;
    Answer held;
    hold(gate, held);
    for (size_t number = kStateRequests; number-- > 0;) submit(nth(number), answers[number]);
    Answer cancelled;
    submit(nth(7), cancelled);
    engine().cancel(last_id_);
    gate.open();
    for (size_t number = 0; number < kStateRequests; ++number) {
      EXPECT_EQ(heard(answers[number]), expected[number]) << number << " of " << ranks << " ranks";
    }
    EXPECT_EQ(cancelled.wait(), FinishReason::kCancelled);
    const EngineStatistics statistics = engine().statistics();
    EXPECT_GT(statistics.preemptions, 0U);
    EXPECT_GT(statistics.state_hits, 0U);
    EXPECT_EQ(statistics.state_slots, 9U + 3U);
  }
}

// A prompt of five pages and a bit, edited at every token: the answer is that of the same prompt
// with nothing cached, and begins behind the last checkpoint before the edit.
TEST_F(StatesServingTest, prefixes_that_end_at_any_token_give_the_bits_of_a_whole_run) {
  constexpr size_t kTokens = 341;
  options_.context_tokens = 512;
  options_.kv_pages = 60;
  for (const uint32_t ranks : {1U, 2U}) {
    engine_.reset();
    options_.rank_count = ranks;
    options_.worker_count = 1;
    EXPECT_EQ(expect_as_alone(of_tokens(some_prompt(kTokens, kTokens, 0))), 0U);
    uint32_t cached_before = 0;
    for (size_t same = 0; same <= kTokens; same += ranks == 1 ? 1 : 7) {
      SCOPED_TRACE(testing::Message() << same << " tokens, " << ranks << " ranks");
      const auto number = static_cast<uint32_t>(1000 + same);
      const uint32_t cached = expect_as_alone(of_tokens(some_prompt(same, kTokens, number)));
      EXPECT_EQ(cached % 64, 0U);
      EXPECT_LE(cached, same);
      EXPECT_GE(cached, cached_before) << "an earlier edit had found more";
      cached_before = cached;
      if (HasFailure()) return;
    }
    EXPECT_GE(cached_before, 256U);
    EXPECT_GT(engine().statistics().state_hits, 20U);
  }
}

TEST_F(StatesServingTest, turns_go_on_from_the_end_of_the_last_one_and_forks_from_where_they_part) {
  options_.context_tokens = 512;
  options_.kv_pages = 60;
  std::vector<TokenId> text = some_prompt(150, 150, 0);
  uint32_t cached = 0;
  for (uint32_t turn = 0; turn < 4; ++turn) {
    const Request asked = of_tokens(text, 40);
    const Heard expected = alone(asked);
    Answer answer;
    submit(asked, answer);
    EXPECT_EQ(heard(answer), expected);
    EXPECT_GE(answer.cached(), cached);
    if (turn > 0) {
      EXPECT_GE(answer.cached() + 192, text.size()) << "turn " << turn;
    }
    cached = answer.cached();
    for (const OutputToken& token : answer.tokens()) text.push_back(token.token);
    for (const TokenId token : some_prompt(30, 30, turn)) text.push_back(token);
  }
  // The third request that begins with these 140 tokens finds the state where they part.
  for (const uint32_t number : {0U, 1U, 2U}) {
    std::vector<TokenId> prompt = some_prompt(0, 140, 77);
    for (const TokenId token : some_prompt(0, 70, 100 + number)) prompt.push_back(token);
    EXPECT_EQ(expect_as_alone(of_tokens(prompt)), number == 2 ? 128U : 0U) << number;
  }
}

TEST(StateSlots, take_an_eighth_of_what_the_cache_takes_within_bounds) {
  EXPECT_EQ(state_slots_beside(8'000, 100, 4), 4U + 10U);
  EXPECT_EQ(state_slots_beside(0, 100, 4), 4U + 8U);
  EXPECT_EQ(state_slots_beside(8'000'000, 100, 4), 4U + 128U);
}

TEST_F(StatesServingTest, the_plan_counts_the_states_of_sequences_drafts_and_checkpoints) {
  options_.rank_count = 2;
  options_.worker_count = 1;
  for (const auto& [sequences, speculate] :
       {std::pair(2U, "auto"), std::pair(4U, "none"), std::pair(12U, "ngram")}) {
    options_.sequence_count = sequences;
    options_.speculate = speculate;
    const auto plan = plan_machine(options_, /*measure=*/false);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    uint64_t bytes = 0;
    uint64_t kv_bytes = 0;  // of three pages for each sequence
    for (const MachinePlan::Rank& rank : plan->ranks) {
      bytes += rank.state_bytes;
      kv_bytes += rank.kv_bytes;
    }
    // Three layers keep two tokens' inputs of 32 columns, which are one rank's alone.
    const size_t slot_bytes = size_t{3} * 2 * (activation_stride(32) | 16U) * sizeof(float);
    ASSERT_TRUE(plan->state_slots.has_value());
    const size_t before_drafts = std::string(speculate) == "none" ? 0 : std::min(sequences, 8U);
    EXPECT_EQ(*plan->state_slots,
              state_slots_beside(kv_bytes, slot_bytes, sequences) + before_drafts);
    EXPECT_EQ(bytes, *plan->state_slots * slot_bytes);
    const double page_bytes = static_cast<double>(kv_bytes) / (3 * sequences);
    EXPECT_NEAR(plan->state_slot_pages, static_cast<double>(slot_bytes) / page_bytes, 1e-6);
  }
  options_.model = source_dir() + "/tests/fixtures/logits/llama-gqa-f16.gguf";
  const auto without = plan_machine(options_, /*measure=*/false);
  ASSERT_TRUE(without.has_value()) << without.error().message;
  EXPECT_FALSE(without->state_slots.has_value());
}

}  // namespace
}  // namespace lockstep
