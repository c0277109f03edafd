// With any drafts an answer has the text and the log-probabilities of one without drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/drafting/drafter.h"
#include "tests/engine/serving/speculation_fixture.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

class DrafterTest : public SpeculationTest {
 protected:
  // Compares requests side by side, with drafters of all kinds and few pages, with each alone and
  // without drafts.
  void expect_no_change_beside_others(size_t count) {
    options_.kv_pages = 0;
    options_.speculate = "none";
    engine_.reset();
    const std::vector<Heard>& plain = without_drafts(count);
    options_.speculate = "ngram";
    options_.kv_pages = 6;  // of sequences of up to three
    engine_.reset();
    std::vector<std::unique_ptr<Answer>> answers;
    NewsGate gate;
    Answer held;
    hold(gate, held);
    for (size_t number = 0; number < count; ++number) {
      answers.push_back(std::make_unique<Answer>());
      Request asked = nth(number);
      const auto kind = std::array<std::optional<Kind>, 4>{Kind::kMixed, std::nullopt, Kind::kRight,
                                                           Kind::kWrong}[number / 4 % 4];
      if (kind) script(asked, *kind, plain[number]);
      if (!kind) asked.prediction = predicted(plain[number].tokens);
      submit(std::move(asked), *answers.back());
    }
    gate.open();
    for (size_t number = 0; number < count; ++number) {
      EXPECT_EQ(heard(*answers[number]), plain[number]) << number;
    }
    EXPECT_GT(engine().statistics().preemptions, 0U);
    EXPECT_GT(accepted(), 100U);
    EXPECT_GT(drafted(), accepted() + 100U);
  }
};

constexpr size_t kRequests = 30;

TEST_F(DrafterTest, no_drafter_changes_an_answer_alone) {
  for (const char* arithmetic : {"exact", "fast"}) {
    SCOPED_TRACE(arithmetic);
    options_.arithmetic = arithmetic;
    options_.speculate = "none";
    engine_.reset();
    const std::vector<Heard>& plain = without_drafts(kRequests);
    for (const Kind kind : {Kind::kRight, Kind::kWrong, Kind::kMixed}) {
      engine_.reset();
      for (size_t number = 0; number < kRequests; ++number) {
        Answer answer;
        Request asked = nth(number);
        script(asked, kind, plain[number]);
        submit(std::move(asked), answer);
        EXPECT_EQ(heard(answer), plain[number]) << number << ", kind " << static_cast<int>(kind);
      }
      EXPECT_GT(drafted(), 100U);
      EXPECT_TRUE((accepted() > 0) == (kind != Kind::kWrong));
    }
    options_.speculate = "ngram";
    engine_.reset();
    for (size_t number = 0; number < kRequests; ++number) {
      Answer answer;
      Request asked = nth(number);
      if (number % 2 == 0) asked.prediction = predicted(plain[number].tokens);
      submit(std::move(asked), answer);
      EXPECT_EQ(heard(answer), plain[number]) << number << " by grams";
    }
    EXPECT_GT(accepted(), 100U);
  }
}

TEST_F(DrafterTest, no_drafter_changes_answers_beside_others_with_few_pages) {
  for (const uint32_t ranks : {1U, 2U}) {
    for (const char* arithmetic : {"exact", "fast"}) {
      SCOPED_TRACE(std::string(arithmetic) + " on ranks: " + std::to_string(ranks));
      options_.arithmetic = arithmetic;
      options_.rank_count = ranks;
      options_.worker_count = 1;
      expect_no_change_beside_others(kRequests);
    }
  }
}

// Requests whose tenant has had the same answers, and of which a second tenant has had none.
TEST_F(DrafterTest, earlier_answers_of_the_tenant_are_drafted_from_and_change_nothing) {
  for (const char* arithmetic : {"exact", "fast"}) {
    SCOPED_TRACE(arithmetic);
    options_.arithmetic = arithmetic;
    options_.speculate = "none";
    engine_.reset();
    const std::vector<Heard>& plain = without_drafts(kRequests);
    options_.speculate = "ngram";
    engine_.reset();
    const auto of_answers = [&] {
      return engine().statistics().drafts[static_cast<size_t>(DraftSource::kAnswers)];
    };
    const auto expect_plain = [&](const std::string& tenant, const std::string& salt) {
      for (size_t number = 0; number < kRequests; ++number) {
        Request asked = nth(number);
        asked.tenant = tenant;
        asked.cache_salt = salt;
        EXPECT_EQ(answer_of(std::move(asked)), plain[number]) << number << " of " << tenant;
      }
    };
    expect_plain("a", "");
    const uint64_t first = of_answers().accepted_tokens[0];
    expect_plain("a", "");
    const uint64_t again = of_answers().accepted_tokens[0];
    EXPECT_GT(again, first + 100U);
    EXPECT_EQ(of_answers().drafter, "answers");
    // The same requests once more: what is drafted for them is what was for the first tenant's.
    expect_plain("b", "");
    EXPECT_EQ(of_answers().accepted_tokens[0], again + first);
    expect_plain("b", "s");
    EXPECT_EQ(of_answers().accepted_tokens[0], again + 2 * first);
  }
}

TEST_F(DrafterTest, an_answer_that_wants_no_drafts_is_none_to_draft_from) {
  options_.speculate = "ngram";
  const auto of_answers = [&] {
    return engine().statistics().drafts[static_cast<size_t>(DraftSource::kAnswers)].drafts;
  };
  Request asked = request("once", 60);
  asked.sampling.temperature = 1;
  asked.speculation = false;
  const Heard plain = answer_of(asked);
  asked.speculation = true;
  EXPECT_EQ(answer_of(asked), plain);
  EXPECT_EQ(of_answers(), 0U);
  EXPECT_EQ(answer_of(asked), plain);
  EXPECT_GT(of_answers(), 5U);
}

// No request finds rejected tokens: the next turn has the bits of a cold one.
TEST_F(DrafterTest, the_prefix_cache_learns_no_rejected_token) {
  options_.arithmetic = "exact";
  Request first = request(std::string(60, 'c'), 120);
  first.logprobs = 0;
  Answer plain;
  submit(first, plain);
  const Heard answer = heard(plain);
  std::vector<TokenId> turn = first.prompt;
  turn.insert(turn.end(), answer.tokens.begin(), answer.tokens.end());
  Request second = request("", 40);
  second.prompt = turn;
  second.prompt.push_back(turn.front());
  second.logprobs = 0;
  engine_.reset();
  Answer cold;
  submit(second, cold);
  const Heard expected = heard(cold);
  for (const Kind kind : {Kind::kWrong, Kind::kMixed}) {
    engine_.reset();
    Answer drafted;
    Request again = first;
    script(again, kind, answer);
    submit(std::move(again), drafted);
    EXPECT_EQ(heard(drafted), answer);
    Answer warm;
    submit(second, warm);
    EXPECT_EQ(heard(warm), expected);
    EXPECT_EQ(warm.cached(), 128U);
  }
}

TEST_F(DrafterTest, right_drafts_take_a_pass_for_eight_tokens) {
  Request asked = request("count", 81);
  asked.sampling.temperature = 0;
  Answer plain;
  submit(asked, plain);
  const Heard answer = heard(plain);
  const uint64_t before = engine().statistics().steps;
  script(asked, Kind::kRight, answer);
  Answer fast;
  submit(std::move(asked), fast);
  EXPECT_EQ(heard(fast), answer);
  // The prompt gives the first token, ten passes of eight the others.
  EXPECT_EQ(engine().statistics().steps - before, 11U);
}

TEST_F(DrafterTest, a_request_without_speculation_takes_no_drafts) {
  options_.speculate = "ngram";
  Request asked = request(std::string(40, 'r'), 60);
  asked.sampling.temperature = 0;
  asked.speculation = false;
  Answer plain;
  submit(asked, plain);
  const Heard answer = heard(plain);
  EXPECT_EQ(drafted(), 0U);
  asked.speculation = true;
  asked.prediction = predicted(answer.tokens);
  Answer fast;
  submit(std::move(asked), fast);
  EXPECT_EQ(heard(fast), answer);
  EXPECT_GT(drafted(), 0U);
}

// However long it is, no pass waits for a drafter to read it, and it drafts when it knows it all.
TEST_F(DrafterTest, a_long_prediction_is_told_to_a_drafter_in_pieces) {
  struct Told {
    std::vector<size_t> pieces;
    std::vector<TokenId> prediction;
    size_t text = 0;
    size_t drafts_before_all = 0;
  };
  class Listening : public Drafter {
   public:
    Listening(Told& told, size_t all) : told_(told), all_(all) {}
    void expect(std::span<const TokenId> tokens) override {
      EXPECT_EQ(told_.text, 0U);
      told_.pieces.push_back(tokens.size());
      told_.prediction.insert(told_.prediction.end(), tokens.begin(), tokens.end());
    }
    void add(std::span<const TokenId> tokens) override {
      told_.pieces.push_back(tokens.size());
      told_.text += tokens.size();
    }
    size_t draft(std::span<TokenId>) override {
      told_.drafts_before_all += told_.prediction.size() < all_ ? 1 : 0;
      return 0;
    }

   private:
    Told& told_;
    size_t all_;
  };
  std::vector<TokenId> prediction(10'000);
  for (size_t index = 0; index < prediction.size(); ++index) {
    prediction[index] = static_cast<TokenId>(index % 50);
  }
  std::array<Told, 2> told;
  std::array<Answer, 2> answers;
  for (size_t number : {0U, 1U}) {
    Request asked = request("x", 40);
    asked.prediction = predicted(prediction);
    asked.make_drafter = [&, number] {
      return std::make_unique<Listening>(told[number], prediction.size());
    };
    submit(std::move(asked), answers[number]);
  }
  for (size_t number : {0U, 1U}) {
    EXPECT_EQ(answers[number].wait(), FinishReason::kLength);
    EXPECT_EQ(told[number].prediction, prediction);
    EXPECT_EQ(told[number].drafts_before_all, 0U);
    EXPECT_GT(told[number].text, 0U);
    EXPECT_LE(*std::ranges::max_element(told[number].pieces), 4096U);
  }
}

TEST_F(DrafterTest, predictions_count_among_what_may_wait) {
  options_.sequence_count = 1;
  options_.waiting_prompt_tokens = 100;
  NewsGate gate;
  Answer first;
  ASSERT_NO_FATAL_FAILURE(hold(gate, first));
  Request asked = request("x", 1);
  asked.prediction = predicted(std::vector<TokenId>(80, 5));
  Answer second;
  submit(asked, second);
  EXPECT_FALSE(engine().submit(asked).has_value());
  gate.open();
  EXPECT_EQ(second.wait(), FinishReason::kLength);
  EXPECT_EQ(engine().statistics().waiting_prompt_tokens, 0U);
  Answer third;
  submit(asked, third);
  EXPECT_EQ(third.wait(), FinishReason::kLength);
}

// No drafter is asked, and the answer is the same, with any tokens that spell the text.
TEST_F(DrafterTest, a_text_that_a_grammar_forces_is_drafted) {
  options_.speculate = "ngram";
  auto compiled = engine().compile_grammar(
      {GrammarSource::Kind::kRegex, "the only answer that there is: [a-f]{4} and so it ends"});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  for (const float temperature : {0.0F, 1.5F}) {
    Request asked = request("x", 90);
    asked.grammar = *compiled;
    asked.logprobs = 1;
    asked.sampling.temperature = temperature;
    asked.speculation = false;
    Answer plain;
    submit(asked, plain);
    const Heard expected = heard(plain);
    const uint64_t before = accepted();
    const uint64_t steps = engine().statistics().steps;
    asked.speculation = true;
    Answer answer;
    submit(asked, answer);
    EXPECT_EQ(heard(answer), expected);
    EXPECT_GT(accepted(), before);
    const auto grammar_place = static_cast<size_t>(DraftSource::kGrammar);
    EXPECT_EQ(engine().statistics().drafts[grammar_place].drafter, "grammar");
    EXPECT_GT(engine().statistics().drafts[grammar_place].drafts, 0U);
    EXPECT_LT(engine().statistics().steps - steps, expected.tokens.size());
  }
}

// It costs its request the drafts, and nothing else.
TEST_F(DrafterTest, a_drafter_that_throws_ends_no_request) {
  class Throwing : public Drafter {
   public:
    void add(std::span<const TokenId>) override {}
    size_t draft(std::span<TokenId>) override { throw std::bad_alloc(); }
  };
  Request asked = request("x", 20);
  Answer plain;
  submit(asked, plain);
  asked.make_drafter = [] { return std::make_unique<Throwing>(); };
  Answer answer;
  submit(std::move(asked), answer);
  EXPECT_EQ(heard(answer), heard(plain));
}

TEST_F(DrafterTest, a_drafter_may_draft_what_is_no_token) {
  class Wild : public Drafter {
   public:
    void add(std::span<const TokenId>) override {}
    size_t draft(std::span<TokenId> drafts) override {
      std::ranges::fill(drafts, 1'000'000);
      drafts.front() = 1;
      return drafts.size();
    }
  };
  Request asked = request("x", 20);
  Answer plain;
  submit(asked, plain);
  asked.make_drafter = [] { return std::make_unique<Wild>(); };
  Answer answer;
  submit(std::move(asked), answer);
  EXPECT_EQ(heard(answer), heard(plain));
  EXPECT_EQ(drafted(), drafts());
}

// Delta nets, short convolutions and scans, with attention beside them or without.
constexpr std::array kWithStates = {"qwen35", "kimi-linear", "lfm2",         "mamba",
                                    "mamba2", "jamba",       "granitehybrid"};

TEST_F(DrafterTest, no_drafter_changes_answers_of_models_with_states) {
  size_t number = 0;
  for (const char* model : kWithStates) {
    options_.model = source_dir() + "/tests/fixtures/families/" + model + ".gguf";
    for (const char* arithmetic : {"exact", "fast"}) {
      for (const uint32_t ranks : {1U, 2U}) {
        if (!is_tried_case(number++)) continue;
        SCOPED_TRACE(std::string(model) + ", " + arithmetic + ", ranks: " + std::to_string(ranks));
        options_.arithmetic = arithmetic;
        options_.rank_count = ranks;
        options_.worker_count = 1;
        expect_no_change_beside_others(/*count=*/16);
        if (HasFailure()) return;
      }
    }
  }
}

// The next turn has the bits of a cold one, and finds the checkpoint at the answer's last border,
// which no draft has jumped over.
TEST_F(DrafterTest, checkpoints_know_no_rejected_token) {
  options_.arithmetic = "exact";
  size_t number = 0;
  for (const char* model : kWithStates) {
    if (!is_tried_case(number++)) continue;
    SCOPED_TRACE(model);
    options_.model = source_dir() + "/tests/fixtures/families/" + model + ".gguf";
    engine_.reset();
    Request first = request("", 120);
    for (TokenId token = 0; token < 60; ++token) first.prompt.push_back(3 + token % 50);
    first.logprobs = 0;
    Answer plain;
    submit(first, plain);
    const Heard answer = heard(plain);
    Request second = request("", 40);
    second.prompt = first.prompt;
    second.prompt.insert(second.prompt.end(), answer.tokens.begin(), answer.tokens.end());
    second.prompt.push_back(5);
    second.logprobs = 0;
    engine_.reset();
    Answer cold;
    submit(second, cold);
    const Heard expected = heard(cold);
    for (const Kind kind : {Kind::kRight, Kind::kWrong, Kind::kMixed}) {
      engine_.reset();
      Answer drafted;
      Request again = first;
      script(again, kind, answer);
      submit(std::move(again), drafted);
      EXPECT_EQ(heard(drafted), answer);
      Answer warm;
      submit(second, warm);
      EXPECT_EQ(heard(warm), expected);
      EXPECT_EQ(warm.cached(), 128U + first.prompt.size() - 60);
    }
  }
}

TEST_F(DrafterTest, an_unknown_drafter_and_too_many_tokens_are_refused) {
  options_.speculate = "oracle";
  const auto unknown = open();
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("oracle"), std::string::npos);
  options_.speculate = "ngram";
  options_.draft_tokens = 16;
  const auto many = open();
  ASSERT_FALSE(many.has_value());
  EXPECT_NE(many.error().message.find("16"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
