// The limit of reasoning: what is generated once it is spent.
#include <gtest/gtest.h>

#include <string_view>
#include <utility>
#include <vector>

#include "engine/serving/reasoning_watch.h"
#include "tests/engine/engine_fixture.h"

namespace lockstep {
namespace {

constexpr TokenId kFirst = 7;
constexpr TokenId kSecond = 8;

ReasoningLimit limit(uint32_t tokens, bool is_open) {
  ReasoningLimit limit;
  limit.tokens = tokens;
  limit.open = "<think>";
  limit.is_open = is_open;
  limit.close = "</think>";
  limit.end = {kFirst, kSecond};
  return limit;
}

// How many of the pieces may come before one that must; all of them and one more: none must.
size_t free_pieces(const ReasoningLimit& limit, const std::vector<std::string_view>& pieces) {
  ReasoningWatch watch(limit);
  for (size_t index = 0; index < pieces.size(); ++index) {
    if (watch.next()) return index;
    watch.add(pieces[index]);
  }
  return watch.next() ? pieces.size() : pieces.size() + 1;
}

TEST(ReasoningWatch, asks_for_the_end_behind_so_many_tokens_of_reasoning) {
  const std::vector<std::string_view> pieces = {"a", "b", "c", "d"};
  for (uint32_t tokens = 0; tokens <= 4; ++tokens) {
    EXPECT_EQ(free_pieces(limit(tokens, true), pieces), tokens);
  }
  EXPECT_EQ(free_pieces(limit(5, true), pieces), 5U);
  EXPECT_EQ(free_pieces(limit(2, false), {" \n", "<thi", "nk>", "a", "b", "c"}), 5U);
  EXPECT_EQ(free_pieces(limit(2, false), {"<think>a", "b", "c"}), 2U);
  EXPECT_EQ(free_pieces(limit(0, false), {"<think>", "a"}), 1U);
}

TEST(ReasoningWatch, asks_for_nothing_where_no_reasoning_is_or_it_is_over) {
  EXPECT_EQ(free_pieces(limit(1, false), {"a", "<think>", "b", "c"}), 5U);
  EXPECT_EQ(free_pieces(limit(1, false), {"<thin", "g>", "b", "c"}), 5U);
  EXPECT_EQ(free_pieces(limit(2, true), {"a</think>", "b", "c"}), 4U);
  EXPECT_EQ(free_pieces(limit(3, true), {"a", "</thi", "nk>", "b", "c"}), 6U);
  EXPECT_EQ(free_pieces(ReasoningLimit{}, {"a", "b"}), 3U);
}

TEST(ReasoningWatch, lets_a_mark_that_has_begun_come_to_its_end) {
  EXPECT_EQ(free_pieces(limit(2, true), {"a", "b</th", "ink>", "c"}), 5U);
  EXPECT_EQ(free_pieces(limit(2, true), {"a", "b</th", "is", "c"}), 3U);
}

TEST(ReasoningWatch, asks_for_all_tokens_of_the_end_in_their_order_and_once) {
  ReasoningWatch watch(limit(1, true));
  watch.add("a");
  EXPECT_EQ(watch.next(), kFirst);
  watch.add("</th");
  EXPECT_EQ(watch.next(), kSecond);
  watch.add("ink>");
  EXPECT_FALSE(watch.next());
  watch.add("<think>");
  watch.add("b");
  EXPECT_FALSE(watch.next());
}

TEST(ReasoningWatch, counts_all_reasoning_of_an_answer_together) {
  ReasoningLimit asked = limit(3, false);
  asked.again = "<more>";
  asked.end_again = {kSecond};
  EXPECT_EQ(free_pieces(asked, {"<think>", "a", "</think>", "x", "<mo", "re>", "b", "c", "d"}), 8U);
  EXPECT_EQ(free_pieces(asked, {"<think>", "a", "b", "</think>", "x", "<more>c", "d"}), 6U);
  // The answer need not begin with reasoning.
  EXPECT_EQ(free_pieces(asked, {"x<mo", "re>", "a", "b", "c", "d"}), 5U);
  EXPECT_EQ(free_pieces(asked, {"a", "<m", "ore", "<think>", "b", "c", "d", "e"}), 9U);
}

TEST(ReasoningWatch, asks_for_another_end_where_reasoning_opens_again_behind_a_spent_limit) {
  ReasoningLimit asked = limit(1, true);
  asked.again = "<more>";
  asked.end_again = {kSecond, kFirst};
  ReasoningWatch watch(asked);
  for (const auto& [piece, next] :
       std::vector<std::pair<std::string_view, TokenId>>{{"a", kFirst},
                                                         {"</th", kSecond},
                                                         {"ink>", 0},
                                                         {"x", 0},
                                                         {"<more>", kSecond},
                                                         {"</think>", kFirst},
                                                         {"y", 0},
                                                         {"<more>", kSecond}}) {
    watch.add(piece);
    EXPECT_EQ(watch.next().value_or(0), next) << piece;
  }
}

class ReasoningTest : public EngineTest {
 protected:
  std::vector<OutputToken> answer(std::optional<uint32_t> tokens, float temperature,
                                  std::optional<uint32_t> logprobs) {
    Request asked = request("Think of a number", 24);
    asked.sampling.temperature = temperature;
    asked.logprobs = logprobs;
    if (tokens) {
      asked.reasoning = limit(*tokens, true);
      asked.reasoning->end = engine().tokenizer().encode("</think>", {});
      end_ = asked.reasoning->end;
    }
    Answer answer;
    submit(std::move(asked), answer);
    EXPECT_EQ(answer.wait(), FinishReason::kLength);
    return answer.tokens();
  }

  std::vector<TokenId> end_;
};

TEST_F(ReasoningTest, a_spent_limit_is_followed_by_the_end_and_then_by_what_the_model_says) {
  for (const float temperature : {0.0F, 1.0F}) {
    for (const auto logprobs : {std::optional<uint32_t>(), std::optional<uint32_t>(0)}) {
      const auto free = answer({}, temperature, logprobs);
      const auto held = answer(5, temperature, logprobs);
      ASSERT_EQ(free.size(), held.size());
      ASSERT_GT(end_.size(), 1U);
      for (size_t index = 0; index < 5; ++index) EXPECT_EQ(held[index].token, free[index].token);
      for (size_t index = 0; index < end_.size(); ++index) {
        EXPECT_EQ(held[5 + index].token, end_[index]) << index;
      }
      // The same again: nothing of it is left to chance.
      const auto again = answer(5, temperature, logprobs);
      for (size_t index = 0; index < held.size(); ++index) {
        EXPECT_EQ(again[index].token, held[index].token);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
