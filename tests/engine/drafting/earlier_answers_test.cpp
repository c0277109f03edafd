// Drafts from earlier answers against a search through what each scope may know, and their bounds.
#include "engine/drafting/earlier_answers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace lockstep {
namespace {

using Text = std::vector<TokenId>;

const AnswerScope kAlice = {.tenant = "alice", .owner = "alice", .salt = ""};

Text drafts_of(const EarlierAnswers& answers, const AnswerScope& scope, const Text& text,
               size_t most, std::optional<AnswerPlace>& place) {
  Text drafts(most, -7);
  const size_t count = answers.draft(scope, text, place, drafts);
  EXPECT_TRUE(std::all_of(drafts.begin() + static_cast<std::ptrdiff_t>(count), drafts.end(),
                          [](TokenId token) { return token == -7; }));
  drafts.resize(count);
  return drafts;
}

Text drafts_of(const EarlierAnswers& answers, const AnswerScope& scope, const Text& text,
               size_t most) {
  std::optional<AnswerPlace> place;
  return drafts_of(answers, scope, text, most, place);
}

Text run_of(TokenId first, TokenId last) {
  Text tokens;
  for (TokenId token = first; token <= last; ++token) tokens.push_back(token);
  return tokens;
}

void add(EarlierAnswers& answers, const AnswerScope& scope, const Text& text) {
  answers.tell(scope, text);
  answers.learn(text.size());
  ASSERT_EQ(answers.waiting_tokens(), 0U);
}

TEST(EarlierAnswers, are_drafted_from_behind_three_tokens_up_to_their_end) {
  EarlierAnswers answers;
  add(answers, kAlice, run_of(1, 10));
  add(answers, kAlice, run_of(30, 40));
  EXPECT_EQ(drafts_of(answers, kAlice, {4, 5}, 4), Text());
  EXPECT_EQ(drafts_of(answers, kAlice, {3, 4, 5}, 4), run_of(6, 9));
  EXPECT_EQ(drafts_of(answers, kAlice, {7, 4, 5, 6}, 2), run_of(7, 8));
  EXPECT_EQ(drafts_of(answers, kAlice, {7, 8, 9}, 4), Text{10});
  EXPECT_EQ(drafts_of(answers, kAlice, {8, 9, 10}, 4), Text());
  EXPECT_EQ(drafts_of(answers, kAlice, {9, 10, 30}, 4), Text());
}

TEST(EarlierAnswers, gives_the_longest_repetition_and_how_long_it_is) {
  EarlierAnswers answers;
  add(answers, kAlice, {9, 1, 2, 3, 50});
  add(answers, kAlice, {8, 1, 2, 3, 60});
  std::optional<AnswerPlace> place;
  EXPECT_EQ(drafts_of(answers, kAlice, {9, 1, 2, 3}, 1, place), Text{50});
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->match, 4U);
  EXPECT_EQ(drafts_of(answers, kAlice, {7, 1, 2, 3}, 1), Text{60});
}

// Lines whose begins are alike, so that the place that is copied from is none of the latest.
TEST(EarlierAnswers, a_place_is_followed_as_long_as_the_text_goes_on_as_it_does_there) {
  std::mt19937_64 random(5);
  Text file;
  for (size_t line = 0; line < 200; ++line) {
    file.insert(file.end(), {1, 1, 1});
    file.push_back(100 + static_cast<TokenId>(random() % 1000));
    file.push_back(2);
  }
  EarlierAnswers answers;
  add(answers, kAlice, file);
  Text text;
  std::optional<AnswerPlace> place;
  size_t right = 0;
  for (const TokenId token : file) {
    const Text draft = drafts_of(answers, kAlice, text, 1, place);
    right += !draft.empty() && draft.front() == token ? 1 : 0;
    text.push_back(token);
  }
  EXPECT_GT(right, file.size() - 20);
}

TEST(EarlierAnswers, of_other_scopes_nothing_is_known) {
  const std::vector<AnswerScope> scopes = {{"alice", "alice", ""},  {"bob", "bob", ""},
                                           {"alice", "alice", "s"}, {"alice", "", "alice"},
                                           {"", "alice", "alice"},  {"alicealice", "", ""}};
  for (const AnswerScope& told : scopes) {
    EarlierAnswers answers;
    add(answers, told, run_of(1, 10));
    for (const AnswerScope& asks : scopes) {
      EXPECT_EQ(answers.knows(asks), asks == told);
      EXPECT_EQ(drafts_of(answers, asks, {3, 4, 5}, 4), asks == told ? run_of(6, 9) : Text());
    }
  }
}

TEST(EarlierAnswers, is_learned_piece_by_piece_in_the_order_of_telling) {
  EarlierAnswers answers;
  const AnswerScope bob = {.tenant = "bob", .owner = "bob", .salt = ""};
  answers.tell(kAlice, run_of(1, 20));
  answers.tell(bob, run_of(1, 20));
  EXPECT_EQ(answers.waiting_tokens(), 40U);
  EXPECT_FALSE(answers.knows(kAlice));
  answers.learn(8);
  EXPECT_EQ(drafts_of(answers, kAlice, {3, 4, 5}, 9), run_of(6, 8));
  EXPECT_FALSE(answers.knows(bob));
  answers.learn(18);
  EXPECT_EQ(drafts_of(answers, kAlice, {3, 4, 5}, 30), run_of(6, 20));
  EXPECT_EQ(drafts_of(answers, bob, {3, 4, 5}, 30), Text{6});
  EXPECT_EQ(answers.waiting_tokens(), 14U);
}

TEST(EarlierAnswers, the_oldest_tokens_make_way) {
  EarlierAnswers answers({.scopes = 2, .tokens = 64});
  for (TokenId first = 100; first <= 1000; first += 100) {
    add(answers, kAlice, run_of(first, first + 19));
    // Three texts fit, each with its end.
    for (TokenId other = 100; other <= first; other += 100) {
      const Text draft = drafts_of(answers, kAlice, run_of(other + 10, other + 13), 1);
      EXPECT_EQ(draft, other + 200 >= first ? Text{other + 14} : Text()) << first << other;
    }
  }
  // A text that is longer than a window leaves its end.
  add(answers, kAlice, run_of(5000, 5999));
  EXPECT_EQ(drafts_of(answers, kAlice, run_of(5990, 5995), 9), run_of(5996, 5999));
  EXPECT_EQ(drafts_of(answers, kAlice, run_of(5930, 5935), 9), Text());
}

TEST(EarlierAnswers, of_too_many_scopes_one_of_the_tenant_with_the_most_goes) {
  EarlierAnswers answers({.scopes = 4, .tokens = 64});
  const auto salted = [](int number) {
    return AnswerScope{.tenant = "many", .owner = "", .salt = std::to_string(number)};
  };
  add(answers, kAlice, run_of(1, 10));
  for (int number = 0; number < 20; ++number) {
    add(answers, salted(number), run_of(1, 10));
    EXPECT_TRUE(answers.knows(kAlice));
    EXPECT_TRUE(answers.knows(salted(number)));
    EXPECT_EQ(answers.knows(salted(number - 3)), false);
  }
  // Among tenants with as many, the one that has learned nothing for the longest.
  EarlierAnswers even({.scopes = 2, .tokens = 64});
  const auto tenant = [](int number) {
    return AnswerScope{.tenant = std::to_string(number), .owner = "", .salt = ""};
  };
  add(even, tenant(3), run_of(1, 10));
  add(even, tenant(1), run_of(1, 10));
  add(even, tenant(3), run_of(1, 10));
  add(even, tenant(2), run_of(1, 10));
  EXPECT_TRUE(even.knows(tenant(3)));
  EXPECT_FALSE(even.knows(tenant(1)));
}

TEST(EarlierAnswers, what_waits_is_bounded_and_what_is_too_short_is_not_kept) {
  EarlierAnswers answers({.scopes = 2, .tokens = 64});
  answers.tell(kAlice, Text{1, 2, 3});
  EXPECT_EQ(answers.waiting_tokens(), 0U);
  for (int count = 0; count < 1000; ++count) answers.tell(kAlice, run_of(1, 30));
  EXPECT_EQ(answers.waiting_tokens(), 60U);
}

// Lives of some tenants with tokens of their own each. What is drafted stands in what this scope
// was told of late, behind the longest repetition that a search finds, and memory stays bounded.
TEST(EarlierAnswers, drafts_as_a_search_through_the_scopes_last_tokens_does) {
  constexpr EarlierAnswers::Limits kLimits = {.scopes = 3, .tokens = 256};
  size_t found = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    EarlierAnswers answers(kLimits);
    std::map<AnswerScope, Text> told;
    const auto some_token = [&](TokenId tenant) {
      return tenant * 100 + static_cast<TokenId>(random() % (3 + seed % 5));
    };
    for (size_t step = 0; step < 300; ++step) {
      const auto number = static_cast<TokenId>(random() % 3);
      const AnswerScope scope = {.tenant = std::to_string(number), .owner = "", .salt = ""};
      Text text;
      const size_t length = 4 + random() % 60;
      while (text.size() < length) text.push_back(some_token(number));
      Text& known = told[scope];
      if (random() % 2 == 0) {
        add(answers, scope, text);
        known.insert(known.end(), text.begin(), text.end());
        known.push_back(kBetweenTexts);
        const size_t surplus = known.size() - std::min(known.size(), kLimits.tokens);
        known.erase(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(surplus));
        EXPECT_LE(answers.memory_bytes(), kLimits.scopes * AnswerWindow::bytes(kLimits.tokens));
        continue;
      }
      size_t longest = 0;
      size_t places = 0;
      for (size_t end = 0; end < known.size(); ++end) {
        size_t match = 0;
        while (match <= end && match < std::min(kMatchMost, text.size()) &&
               known[end - match] == text[text.size() - 1 - match]) {
          ++match;
        }
        places += match >= kGram ? 1 : 0;
        longest = std::max(longest, match);
      }
      std::optional<AnswerPlace> place;
      const Text draft = drafts_of(answers, scope, text, 5, place);
      ASSERT_EQ(place.has_value(), longest >= kGram) << "seed " << seed << " step " << step;
      if (!place) continue;
      if (places <= kCandidatesMost) {
        ASSERT_EQ(place->match, longest) << "seed " << seed;
      }
      Text repeated(text.end() - static_cast<std::ptrdiff_t>(place->match), text.end());
      repeated.insert(repeated.end(), draft.begin(), draft.end());
      EXPECT_NE(std::search(known.begin(), known.end(), repeated.begin(), repeated.end()),
                known.end())
          << "seed " << seed << " step " << step;
      ++found;
    }
  }
  EXPECT_GT(found, 500U);
}

// A window whose places begin again at 2^32 would take hours to reach: it is a matter of
// differences, which a window that is full many times over shows.
TEST(AnswerWindow, holds_its_last_tokens_however_many_were_added) {
  AnswerWindow window(8);
  for (TokenId token = 0; token < 100'000; ++token) window.add(token);
  std::optional<AnswerPlace> place;
  Text drafts(8);
  EXPECT_EQ(window.draft(run_of(99'990, 99'996), place, drafts), 3U);
  EXPECT_EQ(drafts.front(), 99'997);
  EXPECT_EQ(place->match, 5U);
  place.reset();
  EXPECT_EQ(window.draft(run_of(99'980, 99'990), place, drafts), 0U);
  EXPECT_FALSE(place.has_value());
}

}  // namespace
}  // namespace lockstep
