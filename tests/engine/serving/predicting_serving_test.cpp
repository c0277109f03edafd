// Drafts by a block that reads the model's rows, of its own file, EAGLE-3's or an assistant's: an
// answer has the text and the log-probabilities of one without drafts. A block that foresees the
// model is right at each greedy token.
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
  static std::string any_fixture(const std::string& name) {
    return source_dir() + "/tests/fixtures/" + name + ".gguf";
  }
  static std::string fixture(const std::string& name) { return any_fixture("predicting/" + name); }
  void draft_by(const std::string& speculate) {
    options_.speculate = speculate;
    engine_.reset();
  }
  // The same with an EAGLE-3 file; the model is chosen before.
  void draft_by_eagle(const std::string& name, const std::string& speculate = "eagle3") {
    options_.draft_model = any_fixture("eagle/" + name + "-eagle");
    draft_by(speculate);
  }
  // By an assistant of the model that has its name.
  void draft_by_assistant(const std::string& name, const std::string& speculate = "mtp") {
    options_.draft_model = any_fixture("assistants/" + name + "-assistant");
    draft_by(speculate);
  }
  void expect_answers_alone(const std::vector<Heard>& plain) {
    for (size_t number = 0; number < kRequests; ++number) {
      EXPECT_EQ(answer_of(nth(number)), plain[number]) << number;
    }
  }
  void expect_answers_together(const std::vector<Heard>& plain) {
    std::vector<std::unique_ptr<Answer>> answers;
    NewsGate gate;
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
  }
  // With so few pages that the requests take them from one another; `draft` chooses the drafter.
  template <typename Draft>
  void expect_few_pages_change_no_answer(const Draft& draft, uint32_t pages = 6) {
    options_.kv_pages = 0;
    draft_by("none");
    const std::vector<Heard>& plain = without_drafts(kRequests);
    options_.kv_pages = pages;
    draft();
    expect_answers_together(plain);
    EXPECT_GT(of_model().drafts, 50U);
  }
  void expect_each_right();
};

// The second and third text go on from what the prefix cache has of the one before.
void PredictingServingTest::expect_each_right() {
  std::vector<TokenId> text;
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

// Latent attention, delta nets, whose states are taken back where drafts are wrong, and layers with
// windows beside others.
TEST_F(PredictingServingTest, changes_no_answer_alone) {
  options_.arithmetic = "exact";
  for (const char* const name : {"deepseek2-v3", "qwen35", "nemotron_h_moe", "mimo2"}) {
    SCOPED_TRACE(name);
    options_.model = fixture(name);
    draft_by("none");
    const std::vector<Heard>& plain = without_drafts(kRequests);
    draft_by("mtp");
    expect_answers_alone(plain);
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
    expect_few_pages_change_no_answer([&] { draft_by("mtp"); });
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
    expect_each_right();
  }
}

TEST_F(PredictingServingTest, by_eagle_changes_no_answer_alone) {
  for (const char* const arithmetic : {"exact", "fast"}) {
    options_.arithmetic = arithmetic;
    for (const char* const name : {"llama", "llama-words", "llama-output", "qwen35"}) {
      SCOPED_TRACE(std::string(name) + " " + arithmetic);
      const bool is_hybrid = name == std::string("qwen35");
      options_.model = any_fixture(is_hybrid ? "families/qwen35" : "eagle/llama");
      draft_by("none");
      const std::vector<Heard>& plain = without_drafts(kRequests);
      draft_by_eagle(name);
      expect_answers_alone(plain);
      EXPECT_EQ(of_model().drafter, "eagle3");
      EXPECT_GT(of_model().drafts, 200U);
    }
  }
}

TEST_F(PredictingServingTest, by_eagle_changes_no_answers_beside_others_with_few_pages) {
  options_.arithmetic = "exact";
  options_.worker_count = 1;
  for (const uint32_t ranks : {1U, 2U}) {
    options_.rank_count = ranks;
    for (const char* const name : {"llama-words", "qwen35-table"}) {
      SCOPED_TRACE(std::string(name) + " on ranks: " + std::to_string(ranks));
      const bool is_hybrid = name == std::string("qwen35-table");
      options_.model = any_fixture(is_hybrid ? "families/qwen35" : "eagle/llama");
      expect_few_pages_change_no_answer([&] { draft_by_eagle(name, "ngram,eagle3"); });
    }
  }
}

TEST_F(PredictingServingTest, by_eagle_is_right_at_each_greedy_token_where_it_foresees_the_model) {
  const test::Folder folder;
  options_.arithmetic = "exact";
  options_.context_tokens = 400;
  options_.worker_count = 1;
  for (const uint32_t ranks : {1U, 2U}) {
    for (const std::string name : {"llama", "qwen35"}) {
      SCOPED_TRACE(name + " on ranks: " + std::to_string(ranks));
      options_.rank_count = ranks;
      options_.model = folder / "model.gguf";
      options_.draft_model = folder / "eagle.gguf";
      const std::string model = name == "llama" ? "eagle/llama" : "families/qwen35";
      write_foreseeing_eagle(any_fixture("eagle/" + name + "-eagle"), any_fixture(model),
                             options_.draft_model, options_.model);
      draft_by("auto");
      expect_each_right();
      EXPECT_EQ(of_model().drafter, "eagle3");
    }
  }
}

TEST_F(PredictingServingTest, by_an_assistant_changes_no_answer_alone) {
  for (const char* const arithmetic : {"exact", "fast"}) {
    options_.arithmetic = arithmetic;
    for (const char* const name : {"gemma4", "gemma4-e", "gemma4-moe"}) {
      SCOPED_TRACE(std::string(name) + " " + arithmetic);
      options_.model = any_fixture(std::string("families/") + name);
      draft_by("none");
      const std::vector<Heard>& plain = without_drafts(kRequests);
      draft_by_assistant(name);
      expect_answers_alone(plain);
      EXPECT_EQ(of_model().drafter, "mtp");
      EXPECT_GT(of_model().drafts, 200U);
    }
  }
}

TEST_F(PredictingServingTest, by_an_assistant_changes_no_answers_beside_others_with_few_pages) {
  options_.arithmetic = "exact";
  options_.worker_count = 1;
  for (const uint32_t ranks : {1U, 2U}) {
    options_.rank_count = ranks;
    for (const char* const name : {"gemma4", "gemma4-e"}) {
      SCOPED_TRACE(std::string(name) + " on ranks: " + std::to_string(ranks));
      options_.model = any_fixture(std::string("families/") + name);
      // As few as a sequence may need, in groups of layers.
      expect_few_pages_change_no_answer([&] { draft_by_assistant(name, "ngram,mtp"); }, 20);
    }
  }
}

TEST_F(PredictingServingTest, by_an_assistant_is_right_at_each_greedy_token_where_it_foresees) {
  const test::Folder folder;
  options_.arithmetic = "exact";
  options_.context_tokens = 400;
  options_.worker_count = 1;
  for (const uint32_t ranks : {1U, 2U}) {
    for (const char* const speculate : {"auto", "draft", "mtp"}) {
      SCOPED_TRACE(std::string(speculate) + " on ranks: " + std::to_string(ranks));
      options_.rank_count = ranks;
      options_.model = folder / "model.gguf";
      options_.draft_model = folder / "assistant.gguf";
      write_foreseeing_assistant(any_fixture("assistants/gemma4-assistant"),
                                 any_fixture("families/gemma4"), options_.draft_model,
                                 options_.model);
      draft_by(speculate);
      expect_each_right();
      EXPECT_EQ(of_model().drafter, "mtp");
    }
  }
}

TEST_F(PredictingServingTest, an_eagle_file_is_planned_and_one_of_another_model_refused) {
  options_.model = any_fixture("eagle/llama");
  options_.draft_model = any_fixture("eagle/llama-words-eagle");
  options_.speculate = "eagle3";
  const auto plan = plan_machine(options_, /*measure=*/false);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_TRUE(plan->draft.has_value());
  EXPECT_EQ(plan->draft->model, "llama-words-eagle.gguf");
  struct Case {
    const char* model;
    const char* draft;
    const char* part;
  };
  for (const auto& [model, draft, part] :
       {Case{"logits/qwen3-gqa-f32", "eagle/llama-words-eagle", "has another vocabulary"},
        Case{"families/qwen35", "eagle/llama-words-eagle",
             "it reads rows of 64 columns, and those of the model (qwen35) have 32"},
        Case{"logits/llama-mha-f32", "eagle/llama-words-eagle",
             "it reads rows of layer 3, and the model (llama) has 2 layers"},
        Case{"eagle/llama", "logits/llama-mha-f32", "it is no EAGLE-3 file"},
        Case{"families/gemma4", "assistants/gemma4-assistant",
             "it is no EAGLE-3 file (speculate eagle3), but one of architecture gemma4-assistant"},
        Case{"eagle/llama-eagle", "eagle/llama-words-eagle",
             "drafts for another model: use --model"}}) {
    options_.model = any_fixture(model);
    options_.draft_model = any_fixture(draft);
    EXPECT_NE(refusal().find(part), std::string::npos) << model << ": " << refusal();
  }
}

TEST_F(PredictingServingTest, an_assistant_is_planned_and_one_of_another_model_refused) {
  options_.model = any_fixture("families/gemma4");
  options_.draft_model = any_fixture("assistants/gemma4-assistant");
  options_.speculate = "auto";
  const auto plan = plan_machine(options_, /*measure=*/false);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_TRUE(plan->draft.has_value());
  EXPECT_EQ(plan->draft->model, "gemma4-assistant.gguf");
  struct Case {
    const char* model;
    const char* draft;
    const char* part;
  };
  options_.speculate = "mtp";
  for (const auto& [model, draft, part] :
       {Case{"logits/qwen3-gqa-f32", "assistants/gemma4-assistant", "has another vocabulary"},
        Case{"eagle/llama", "assistants/gemma4-assistant",
             "it reads embeddings of 32 columns (gemma4-assistant.embedding_length_out)"},
        Case{"families/gemma4-e", "assistants/gemma4-assistant",
             "it reads keys and values of layer 4, 2 heads of 16 dimensions with a window of 20, "
             "and those of the model (gemma4) have 1 heads of 16 dimensions with a window of 20: "
             "it was made for another model. Use the one"},
        Case{"families/gemma3", "assistants/gemma4-e-assistant", "it reads keys and values"},
        Case{"families/gemma4", "logits/llama-mha-f32",
             "it is no gemma4-assistant file (speculate mtp), but one of architecture llama"},
        Case{"assistants/gemma4-assistant", "assistants/gemma4-assistant",
             "drafts for another model: use --model"}}) {
    options_.model = any_fixture(model);
    options_.draft_model = any_fixture(draft);
    EXPECT_NE(refusal().find(part), std::string::npos) << model << ": " << refusal();
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
  options_.speculate = "mtp,draft";
  options_.draft_model = fixture("glm4moe-norms");
  EXPECT_NE(refusal().find("exclude one another"), std::string::npos) << refusal();
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
