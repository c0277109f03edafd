// An engine whose model keeps states: whatever happens to a request beside others, its answer has
// the bits of one alone.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "engine/kernels/activation.h"
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
    EXPECT_EQ(answer.cached(), 0U);
    Heard result{answer.text(), {}};
    for (const OutputToken& token : answer.tokens()) result.logprobs.push_back(token.logprob);
    return result;
  }
  // By number: prompts and answers of other lengths, some prompts beginning alike; all grow over
  // two pages' borders or three.
  Request nth(size_t number) {
    const std::string head(20 + number % 3 * 25, static_cast<char>('a' + number % 2));
    Request asked = request(head + " tail " + std::to_string(number),
                            static_cast<uint32_t>(100 - number % 4 * 9), number);
    asked.logprobs = 0;
    asked.priority = static_cast<int32_t>(number % 3);  // some step aside for others
    return asked;
  }
};

constexpr size_t kRequests = 12;

TEST_F(StatesServingTest, answers_beside_others_with_few_pages_have_the_bits_of_those_alone) {
  std::vector<Heard> alone;
  for (size_t number = 0; number < kRequests; ++number) {
    Answer answer;
    submit(nth(number), answer);
    alone.push_back(heard(answer));
  }
  for (const uint32_t ranks : {1U, 2U}) {
    engine_.reset();
    options_.rank_count = ranks;
    options_.worker_count = 1;
    options_.kv_pages = 5;  // of sequences of up to three
    options_.sequence_count = 3;
    options_.batch_tokens = 24;
    std::array<Answer, kRequests> answers;
    Gate gate;
    Answer held;
    hold(gate, held);
    for (size_t number = kRequests; number-- > 0;) submit(nth(number), answers[number]);
    Answer cancelled;
    submit(nth(7), cancelled);
    engine().cancel(last_id_);
    gate.open();
    for (size_t number = 0; number < kRequests; ++number) {
      EXPECT_EQ(heard(answers[number]), alone[number]) << number << " of " << ranks << " ranks";
    }
    EXPECT_EQ(cancelled.wait(), FinishReason::kCancelled);
    EXPECT_EQ(engine().statistics().prefix_hit_tokens, 0U);
  }
}

TEST_F(StatesServingTest, the_plan_counts_the_states_of_as_many_sequences_as_run_at_once) {
  options_.rank_count = 2;
  options_.worker_count = 1;
  for (const uint32_t sequences : {2U, 4U}) {
    options_.sequence_count = sequences;
    const auto plan = plan_machine(options_, /*measure=*/false);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    EXPECT_EQ(plan->state_slots, sequences);
    uint64_t bytes = 0;
    for (const MachinePlan::Rank& rank : plan->ranks) bytes += rank.state_bytes;
    // Three layers keep two tokens' inputs of 32 columns, which are one rank's alone.
    EXPECT_EQ(bytes, sequences * 3 * 2 * (activation_stride(32) | 16U) * sizeof(float));
  }
  options_.model = source_dir() + "/tests/fixtures/logits/llama-gqa-f16.gguf";
  const auto without = plan_machine(options_, /*measure=*/false);
  ASSERT_TRUE(without.has_value()) << without.error().message;
  EXPECT_FALSE(without->state_slots.has_value());
}

}  // namespace
}  // namespace lockstep
