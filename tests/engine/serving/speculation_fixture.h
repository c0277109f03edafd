// Answers with drafts, to be compared with those without.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/drafting/drafter.h"
#include "tests/engine/engine_fixture.h"

namespace lockstep {

// Knows the answer. Tells it, or something else in its place, as its kind wants.
class ScriptedDrafter : public Drafter {
 public:
  enum class Kind { kRight, kWrong, kMixed };

  // `begin`: the prompt's tokens.
  ScriptedDrafter(Kind kind, size_t begin, std::vector<TokenId> answer)
      : kind_(kind), begin_(begin), answer_(std::move(answer)) {}

  void add(std::span<const TokenId> tokens) override { known_ += tokens.size(); }
  size_t draft(std::span<TokenId> drafts) override {
    size_t count = 0;
    for (size_t index = known_ - begin_; index < answer_.size() && count < drafts.size();
         ++index, ++count) {
      const bool is_right = kind_ == Kind::kRight || (kind_ == Kind::kMixed && index % 5 != 3);
      drafts[count] = is_right ? answer_[index] : answer_[index] == 1 ? 2 : 1;
    }
    return count;
  }

 private:
  Kind kind_;
  size_t begin_;
  std::vector<TokenId> answer_;
  size_t known_ = 0;
};

using Kind = ScriptedDrafter::Kind;

class SpeculationTest : public EngineTest {
 protected:
  SpeculationTest() {
    options_.context_tokens = 320;
    options_.draft_tokens = 7;
    options_.speculate = "none";
  }

  struct Heard {
    FinishReason finish = FinishReason::kError;
    std::string text;
    std::vector<TokenId> tokens;
    std::vector<float> logprobs;

    bool operator==(const Heard&) const = default;
  };
  static Heard heard(Answer& answer) {
    Heard result;
    result.finish = answer.wait();
    result.text = answer.text();
    for (const OutputToken& token : answer.tokens()) {
      result.tokens.push_back(token.token);
      result.logprobs.push_back(token.logprob);
      for (const TokenLogprob& top : token.top) result.logprobs.push_back(top.logprob);
    }
    return result;
  }

  Heard answer_of(Request asked) {
    Answer answer;
    submit(std::move(asked), answer);
    return heard(answer);
  }
  // Why the engine does not open; empty: it does.
  std::string refusal() {
    const auto opened = open();
    return opened ? "" : opened.error().message;
  }

  // By number: greedy and sampled, with penalties, biases, grammars, stop strings and bans.
  Request nth(size_t number) {
    Request asked = request(std::string(3 + number % 5 * 17, static_cast<char>('a' + number % 2)) +
                                " of " + std::to_string(number),
                            static_cast<uint32_t>(90 - number % 4 * 9), number);
    asked.logprobs = number % 3;
    SamplingParameters& sampling = asked.sampling;
    sampling.temperature = std::array{0.0F, 1.0F, 0.6F, 1.7F}[number % 4];
    if (number % 3 == 1) sampling.top_k = 5;
    if (number % 5 == 2) sampling.top_p = 0.8F;
    if (number % 7 == 3) sampling.min_p = 0.05F;
    if (number % 6 == 4) sampling.repetition_penalty = 1.3F;
    if (number % 6 == 5) sampling.presence_penalty = 0.7F;
    if (number % 9 == 6) sampling.frequency_penalty = 0.4F;
    if (number % 8 == 3) sampling.logit_bias = {{5, 2.0F}, {9, -3.0F}};
    if (number % 10 == 7) asked.grammar = grammar();
    if (number % 10 == 4) asked.stop = {"e", "zq"};
    if (number % 10 == 8) {
      asked.ignore_eos = false;
      asked.min_tokens = 12;
      asked.stop_tokens = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    }
    asked.priority = static_cast<int32_t>(number % 3);
    return asked;
  }
  std::shared_ptr<const Grammar> grammar() {
    auto compiled =
        engine().compile_grammar({GrammarSource::Kind::kRegex, "([a-f]{2,5}[0-9 ]){3,12}"});
    if (!compiled) throw std::runtime_error(compiled.error().message);
    return *compiled;
  }

  static void script(Request& asked, Kind kind, const Heard& answer) {
    asked.make_drafter = [kind, begin = asked.prompt.size(), tokens = answer.tokens] {
      return std::make_unique<ScriptedDrafter>(kind, begin, tokens);
    };
  }

  static std::shared_ptr<const std::vector<TokenId>> predicted(std::vector<TokenId> tokens) {
    return std::make_shared<const std::vector<TokenId>>(std::move(tokens));
  }

  // At least `count` answers without drafts, each alone. They depend on the model and its
  // arithmetic, not on ranks, workers or pages: what one worker answers serves all tests of the
  // program.
  const std::vector<Heard>& without_drafts(size_t count) {
    static std::map<std::pair<std::string, std::string>, std::vector<Heard>> known;
    std::vector<Heard>& answers = known[{options_.model, options_.arithmetic}];
    if (answers.size() >= count) return answers;
    const EngineOptions asked = options_;
    options_.speculate = "none";
    options_.rank_count = 1;
    options_.worker_count = 1;
    options_.kv_pages = 0;
    engine_.reset();
    while (answers.size() < count) {
      Request next = nth(answers.size());
      next.speculation = false;
      answers.push_back(answer_of(std::move(next)));
    }
    EXPECT_EQ(drafts(), 0U);
    options_ = asked;
    engine_.reset();
    return answers;
  }

  // The drafts of a smaller model or of a block.
  DraftStatistics of_model() {
    return engine().statistics().drafts[static_cast<size_t>(DraftSource::kModel)];
  }
  uint64_t accepted() {
    uint64_t sum = 0;
    for (const DraftStatistics& counted : engine().statistics().drafts) {
      for (const uint64_t tokens : counted.accepted_tokens) sum += tokens;
    }
    return sum;
  }
  uint64_t drafted() {
    uint64_t sum = 0;
    for (const DraftStatistics& counted : engine().statistics().drafts) {
      for (const uint64_t tokens : counted.tokens) sum += tokens;
    }
    return sum;
  }
  uint64_t drafts() {
    uint64_t sum = 0;
    for (const DraftStatistics& counted : engine().statistics().drafts) sum += counted.drafts;
    return sum;
  }
};

}  // namespace lockstep
