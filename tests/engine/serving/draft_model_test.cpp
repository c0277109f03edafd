// Drafts by another model: an answer has the text and the log-probabilities of one without drafts.
// The model itself, as its own draft, is right at each greedy token; one with other weights nearly
// never.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/measure/machine_planning.h"
#include "engine/placement/draft_layout.h"
#include "tests/engine/serving/speculation_fixture.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

constexpr size_t kDraftedRequests = 30;

class DraftModelTest : public SpeculationTest {
 protected:
  static std::string fixture(const std::string& name) {
    return source_dir() + "/tests/fixtures/" + name + ".gguf";
  }
  void draft_by(const std::string& file) {
    options_.speculate = "draft";
    options_.draft_model = file;
    engine_.reset();
  }
  void draft_by_none() {
    options_.speculate = "none";
    options_.kv_pages = 0;
    engine_.reset();
  }

  const std::string same_ = fixture("logits/llama-gqa-f16");
  const std::string other_ = fixture("logits/qwen3-gqa-f32");
};

TEST_F(DraftModelTest, changes_no_answer_alone) {
  for (const char* arithmetic : {"exact", "fast"}) {
    SCOPED_TRACE(arithmetic);
    options_.arithmetic = arithmetic;
    draft_by_none();
    const std::vector<Heard>& plain = without_drafts(kDraftedRequests);
    for (const std::string& file : {same_, other_}) {
      draft_by(file);
      for (size_t number = 0; number < kDraftedRequests; ++number) {
        EXPECT_EQ(answer_of(nth(number)), plain[number]) << number << " by " << file;
      }
      EXPECT_EQ(of_model().drafter, "draft");
      EXPECT_GT(drafted(), 1000U);
      EXPECT_EQ(accepted() > 500U, file == same_);
      EXPECT_GT(engine().statistics().draft_stage_seconds, 0);
    }
  }
}

// Prompts, prefixes, answers over several pages, texts that are read in pieces: whatever its cache
// has is what it should have.
TEST_F(DraftModelTest, the_model_itself_is_right_at_each_greedy_token) {
  options_.arithmetic = "exact";
  options_.context_tokens = 640;
  for (const uint32_t ranks : {1U, 2U}) {
    options_.rank_count = ranks;
    options_.worker_count = 1;
    draft_by(same_);
    std::vector<TokenId> text;
    for (const size_t words : {3U, 40U, 200U}) {
      Request asked = request(std::string(words, 'w'), 90);
      asked.sampling.temperature = 0;
      if (!text.empty()) asked.prompt.insert(asked.prompt.begin(), text.begin(), text.end());
      const uint64_t steps = engine().statistics().steps;
      const Heard answer = answer_of(asked);
      EXPECT_EQ(answer.tokens.size(), 90U);
      EXPECT_LT(engine().statistics().steps - steps, 90U);
      text = asked.prompt;
      text.insert(text.end(), answer.tokens.begin(), answer.tokens.end());
      if (text.size() > 300) text.clear();
    }
    EXPECT_GT(drafted(), 150U);
    EXPECT_EQ(accepted(), drafted());
  }
}

TEST_F(DraftModelTest, sequences_that_share_a_prefix_share_what_it_has_read) {
  options_.arithmetic = "exact";
  draft_by(same_);
  std::vector<std::unique_ptr<Answer>> answers;
  NewsGate gate;
  Answer held;
  hold(gate, held);
  for (size_t number = 0; number < 8; ++number) {
    Request asked = request(std::string(130, 'p') + std::to_string(number % 3), 60);
    asked.sampling.temperature = 0;
    answers.push_back(std::make_unique<Answer>());
    submit(std::move(asked), *answers.back());
  }
  gate.open();
  for (const auto& answer : answers) EXPECT_EQ(answer->wait(), FinishReason::kLength);
  EXPECT_GT(engine().statistics().prefix_hit_tokens, 128U);
  EXPECT_GT(drafted(), 200U);
  EXPECT_EQ(accepted(), drafted());
}

TEST_F(DraftModelTest, changes_no_answers_beside_others_with_few_pages) {
  size_t number_of_case = 0;
  for (const uint32_t ranks : {1U, 2U}) {
    for (const char* arithmetic : {"exact", "fast"}) {
      SCOPED_TRACE(std::string(arithmetic) + " on ranks: " + std::to_string(ranks));
      options_.arithmetic = arithmetic;
      options_.rank_count = ranks;
      options_.worker_count = 1;
      draft_by_none();
      const std::vector<Heard>& plain = without_drafts(kDraftedRequests);
      for (const auto& [file, speculate] :
           {std::pair(same_, "draft"), std::pair(other_, "ngram,draft")}) {
        if (!is_tried_case(number_of_case++)) continue;
        draft_by(file);
        options_.speculate = speculate;
        options_.kv_pages = 6;  // of sequences of up to three
        std::vector<std::unique_ptr<Answer>> answers;
        NewsGate gate;
        Answer held;
        hold(gate, held);
        for (size_t number = 0; number < kDraftedRequests; ++number) {
          answers.push_back(std::make_unique<Answer>());
          Request asked = nth(number);
          if (number % 4 == 1) asked.prediction = predicted(plain[number].tokens);
          asked.speculation = number % 7 != 3;
          submit(std::move(asked), *answers.back());
        }
        gate.open();
        for (size_t number = 0; number < kDraftedRequests; ++number) {
          EXPECT_EQ(heard(*answers[number]), plain[number]) << number << " by " << file;
        }
        EXPECT_GT(engine().statistics().preemptions, 0U);
        EXPECT_GT(of_model().drafts, 50U);
        EXPECT_GT(accepted(), 50U);
      }
    }
  }
}

// With as many tokens as pay: how many those are is a matter of times, what they give is not.
TEST_F(DraftModelTest, changes_no_answer_with_as_many_tokens_as_pay) {
  options_.arithmetic = "exact";
  draft_by_none();
  const std::vector<Heard>& plain = without_drafts(kDraftedRequests);
  options_.draft_tokens.reset();
  draft_by(same_);
  std::vector<std::unique_ptr<Answer>> answers;
  for (size_t number = 0; number < kDraftedRequests; ++number) {
    answers.push_back(std::make_unique<Answer>());
    submit(nth(number), *answers.back());
  }
  for (size_t number = 0; number < kDraftedRequests; ++number) {
    EXPECT_EQ(heard(*answers[number]), plain[number]) << number;
  }
}

TEST_F(DraftModelTest, n_grams_go_first_where_they_repeat_much) {
  options_.draft_model = same_;
  options_.speculate = "auto";
  Request asked = request(std::string(40, 'r'), 60);
  asked.sampling.temperature = 0;
  asked.speculation = false;
  const Heard answer = answer_of(asked);
  EXPECT_EQ(drafts(), 0U);
  asked.speculation = true;
  asked.prediction = predicted(answer.tokens);
  EXPECT_EQ(answer_of(asked), answer);
  const auto counted = engine().statistics().drafts;
  EXPECT_EQ(counted[static_cast<size_t>(DraftSource::kDrafter)].drafter, "ngram");
  EXPECT_GT(counted[static_cast<size_t>(DraftSource::kDrafter)].drafts, 2U);
  EXPECT_GT(of_model().drafts, 0U) << "until eight tokens are repeated";
}

TEST_F(DraftModelTest, is_planned_and_counted) {
  options_.speculate = "none";
  options_.draft_model = other_;
  const auto without = plan_machine(options_, /*measure=*/false);
  ASSERT_TRUE(without.has_value()) << without.error().message;
  EXPECT_FALSE(without->draft.has_value());
  options_.speculate = "auto";
  options_.rank_count = 2;
  options_.worker_count = 1;
  const auto plan = plan_machine(options_, /*measure=*/false);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_TRUE(plan->draft.has_value());
  EXPECT_EQ(plan->draft->model, "qwen3-gqa-f32.gguf");
  ASSERT_EQ(plan->draft->ranks.size(), 2U);
  const EngineStatistics statistics = engine().statistics();
  for (size_t rank = 0; rank < 2; ++rank) {
    const MachinePlan::Draft::Rank& draft = plan->draft->ranks[rank];
    EXPECT_GT(draft.weight_bytes, 0U);
    EXPECT_EQ(statistics.ranks[rank].weight_bytes,
              plan->ranks[rank].weight_bytes + draft.weight_bytes);
    EXPECT_EQ(statistics.ranks[rank].kv_bytes, plan->ranks[rank].kv_bytes + draft.kv_bytes);
    EXPECT_EQ(statistics.ranks[rank].scratch_bytes,
              plan->ranks[rank].scratch_bytes + draft.scratch_bytes);
  }
}

TEST_F(DraftModelTest, what_cannot_draft_is_refused_with_a_reason) {
  options_.speculate = "draft";
  EXPECT_NE(refusal().find("use --draft-model FILE"), std::string::npos) << refusal();
  options_.speculate = "auto";
  options_.draft_model = fixture("families/nothing");
  EXPECT_NE(refusal().find("families/nothing.gguf"), std::string::npos) << refusal();
  struct Case {
    const char* model;
    const char* draft;
    const char* part;
  };
  for (const auto& [model, draft, part] :
       {Case{"logits/llama-gqa-f16", "families/apertus", "has another vocabulary"},
        Case{"families/lfm2", "families/lfm2", "keep a state"}}) {
    options_.model = fixture(model);
    options_.draft_model = fixture(draft);
    EXPECT_NE(refusal().find(part), std::string::npos) << model << ": " << refusal();
  }
}

// Pages of layers with windows are given back; those that the draft shares are others.
TEST_F(DraftModelTest, models_with_several_windows_draft_and_are_drafted_for) {
  options_.arithmetic = "exact";
  options_.worker_count = 1;
  for (const char* const name : {"gemma3", "gpt-oss"}) {
    SCOPED_TRACE(name);
    options_.model = fixture(std::string("families/") + name);
    draft_by_none();
    const std::vector<Heard>& plain = without_drafts(kDraftedRequests);
    draft_by(options_.model);
    std::vector<std::unique_ptr<Answer>> answers;
    for (size_t number = 0; number < kDraftedRequests; ++number) {
      answers.push_back(std::make_unique<Answer>());
      submit(nth(number), *answers.back());
    }
    for (size_t number = 0; number < kDraftedRequests; ++number) {
      EXPECT_EQ(heard(*answers[number]), plain[number]) << number;
    }
    engine_.reset();
    Request asked = request(std::string(200, 'w'), 90);
    asked.sampling.temperature = 0;
    EXPECT_EQ(answer_of(asked).tokens.size(), 90U);
    EXPECT_GT(drafted(), 50U);
    EXPECT_EQ(accepted(), drafted());
  }
}

// All of its layers have a window, so that no page keeps all tokens.
TEST(DraftModels, a_model_whose_layers_all_have_windows_is_refused) {
  const auto with_window = [](size_t window) {
    Model model;
    model.architecture = "made";
    Graph& graph = model.graph;
    const ValueId x = graph.embed(graph.add_matrix("table", Format::kF32, 64, 32));
    graph.attention(0, x, x, x, 1, 1, {.scale = 1, .window = window});
    return model;
  };
  Model draft = with_window(16);
  draft.graph.keep_all_keys();
  EXPECT_TRUE(check_draft_models(with_window(0), draft).has_value());
  const auto refused = check_draft_models(with_window(16), draft);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message,
            "the model (made) has no layer that sees all tokens: tokens cannot be drafted by "
            "another model then; use another drafter, as --speculate ngram");
}

}  // namespace
}  // namespace lockstep
