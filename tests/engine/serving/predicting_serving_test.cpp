// Drafts by the model's own block: an answer has the text and the log-probabilities of one without
// drafts. A block that foresees the model is right at each greedy token.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/measure/machine_planning.h"
#include "tests/engine/runtime/predicting_model.h"
#include "tests/engine/serving/speculation_fixture.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

constexpr size_t kRequests = 20;

class PredictingServingTest : public SpeculationTest {
 protected:
  static std::string fixture(const std::string& name) {
    return source_dir() + "/tests/fixtures/predicting/" + name + ".gguf";
  }
  void draft_by(const std::string& speculate) {
    options_.speculate = speculate;
    engine_.reset();
  }
};

// Latent attention, and delta nets, whose states are taken back where drafts are wrong.
TEST_F(PredictingServingTest, changes_no_answer_alone) {
  options_.arithmetic = "exact";
  for (const char* const name : {"deepseek2-v3", "qwen35", "nemotron_h_moe"}) {
    SCOPED_TRACE(name);
    options_.model = fixture(name);
    draft_by("none");
    const std::vector<Heard> plain = without_drafts(kRequests);
    draft_by("mtp");
    for (size_t number = 0; number < kRequests; ++number) {
      EXPECT_EQ(answer_of(nth(number)), plain[number]) << number;
    }
    EXPECT_EQ(of_model().drafter, "mtp");
    EXPECT_GT(of_model().drafts, 200U);
    EXPECT_GT(engine().statistics().draft_stage_seconds, 0);
  }
}

TEST_F(PredictingServingTest, changes_no_answers_beside_others_with_few_pages) {
  options_.arithmetic = "exact";
  options_.rank_count = 2;
  options_.worker_count = 1;
  for (const char* const name : {"glm4moe-norms", "qwen35moe"}) {
    SCOPED_TRACE(name);
    options_.model = fixture(name);
    options_.kv_pages = 0;
    draft_by("none");
    const std::vector<Heard> plain = without_drafts(kRequests);
    options_.kv_pages = 6;
    draft_by("mtp");
    std::vector<std::unique_ptr<Answer>> answers;
    Gate gate;
    Answer held;
    hold(gate, held);
    for (size_t number = 0; number < kRequests; ++number) {
      answers.push_back(std::make_unique<Answer>());
      submit(nth(number), *answers.back());
    }
    gate.open();
    for (size_t number = 0; number < kRequests; ++number) {
      EXPECT_EQ(heard(*answers[number]), plain[number]) << number;
    }
    EXPECT_GT(of_model().drafts, 50U);
  }
}

TEST_F(PredictingServingTest, is_right_at_each_greedy_token_where_it_foresees_the_model) {
  const test::Folder folder;
  options_.arithmetic = "exact";
  options_.context_tokens = 400;
  for (const char* const name : {"qwen3next", "qwen35"}) {
    SCOPED_TRACE(name);
    const std::string copy = folder / "copy.gguf";
    write_foreseeing_copy(fixture(name), copy);
    options_.model = copy;
    draft_by("mtp");
    std::vector<TokenId> text;
    // The second and third go on from what the prefix cache has of the one before.
    for (const size_t words : {3U, 40U, 90U}) {
      Request asked = request(std::string(words, 'w'), 50);
      asked.sampling.temperature = 0;
      asked.prompt.insert(asked.prompt.begin(), text.begin(), text.end());
      const uint64_t steps = engine().statistics().steps;
      const uint64_t drafted_before = drafted();
      const Heard answer = answer_of(asked);
      EXPECT_EQ(answer.tokens.size(), 50U);
      EXPECT_LT(engine().statistics().steps - steps, 40U);
      EXPECT_GT(drafted(), drafted_before + 20);
      text = asked.prompt;
      text.insert(text.end(), answer.tokens.begin(), answer.tokens.end());
    }
    EXPECT_GT(engine().statistics().prefix_hit_tokens, 0U);
    EXPECT_EQ(accepted(), drafted());
  }
}

TEST_F(PredictingServingTest, is_planned_and_what_cannot_draft_is_refused_with_a_reason) {
  options_.model = fixture("glm4moe-norms");
  options_.speculate = "ngram,mtp";
  const auto plan = plan_machine(options_, /*measure=*/false);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_TRUE(plan->draft.has_value());
  EXPECT_EQ(plan->draft->model, "glm4moe-norms.gguf");
  const std::string families = source_dir() + "/tests/fixtures/families/";
  options_.model = families + "glm4moe.gguf";
  EXPECT_NE(refusal().find("the file has 0 (tensors blk.N.nextn.*). Use another drafter"),
            std::string::npos)
      << refusal();
  options_.model = fixture("mimo2");
  EXPECT_NE(refusal().find("has layers of different windows"), std::string::npos) << refusal();
  options_.speculate = "mtp,draft";
  options_.draft_model = fixture("glm4moe-norms");
  EXPECT_NE(refusal().find("exclude one another"), std::string::npos) << refusal();
}

TEST_F(PredictingServingTest, is_refused_among_hosts_with_the_option_and_the_remedy) {
  options_.model = fixture("glm4moe-norms");
  options_.speculate = "mtp";
  options_.hosts.count = 2;
  EXPECT_EQ(refusal(),
            "a block of the model is to draft (speculate mtp), but several hosts compute together. "
            "Use another drafter, as --speculate ngram");
}

// No row is copied for it, and the block has no pass: its time stays as it is to the last bit.
TEST_F(PredictingServingTest, a_request_that_wants_no_drafts_costs_the_block_nothing) {
  options_.model = fixture("deepseek2-v3");
  draft_by("mtp");
  Request asked = request(std::string(100, 'w'), 40);
  asked.speculation = false;
  const Heard plain = answer_of(asked);
  EXPECT_EQ(engine().statistics().draft_stage_seconds, 0);
  asked.speculation = true;
  EXPECT_EQ(answer_of(asked), plain);
  EXPECT_GT(engine().statistics().draft_stage_seconds, 0);
}

}  // namespace
}  // namespace lockstep
