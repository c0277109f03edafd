// The n-gram drafter against a search through the whole text, and its bounds.
#include "engine/drafting/ngram_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

namespace lockstep {
namespace {

using Tokens = std::vector<TokenId>;

Tokens drafted(NgramDrafter& drafter, size_t most) {
  Tokens drafts(most, -7);
  const size_t count = drafter.draft(drafts);
  EXPECT_TRUE(std::all_of(drafts.begin() + static_cast<std::ptrdiff_t>(count), drafts.end(),
                          [](TokenId token) { return token == -7; }));
  drafts.resize(count);
  return drafts;
}

Tokens numbers(TokenId first, TokenId last) {
  Tokens tokens;
  for (TokenId token = first; token <= last; ++token) tokens.push_back(token);
  return tokens;
}

TEST(NgramDrafter, drafts_what_stood_behind_a_repetition_of_three_tokens) {
  NgramDrafter drafter(0);
  drafter.add(numbers(1, 10));
  EXPECT_EQ(drafted(drafter, 4), Tokens());
  drafter.add(Tokens{3, 4});
  EXPECT_EQ(drafted(drafter, 4), Tokens());
  drafter.add(Tokens{5});
  EXPECT_EQ(drafted(drafter, 4), numbers(6, 9));
  EXPECT_EQ(drafted(drafter, 2), numbers(6, 7));
}

TEST(NgramDrafter, finds_the_longest_repetition_and_of_equal_ones_the_last) {
  NgramDrafter longest(0);
  longest.add(Tokens{9, 1, 2, 3, 50, 8, 1, 2, 3, 60, 9, 1, 2, 3});
  EXPECT_EQ(drafted(longest, 1), Tokens{50});
  NgramDrafter last(0);
  last.add(Tokens{9, 1, 2, 3, 50, 8, 1, 2, 3, 60, 7, 1, 2, 3});
  EXPECT_EQ(drafted(last, 1), Tokens{60});
}

// A copy whose grams stand in many other places, the latest ones above all.
TEST(NgramDrafter, follows_the_place_it_copies_from) {
  std::mt19937_64 random(5);
  Tokens file;
  for (size_t line = 0; line < 200; ++line) {
    file.insert(file.end(), {1, 1, 1});  // indentation
    file.push_back(100 + static_cast<TokenId>(random() % 1000));
    file.push_back(2);
  }
  NgramDrafter drafter(0);
  drafter.add(file);
  size_t right = 0;
  for (const TokenId token : file) {
    const Tokens draft = drafted(drafter, 1);
    right += !draft.empty() && draft.front() == token ? 1 : 0;
    drafter.add(std::array{token});
  }
  EXPECT_GT(right, file.size() - 10);
}

TEST(NgramDrafter, goes_round_in_circles) {
  NgramDrafter drafter(0);
  drafter.add(Tokens{4, 5, 4, 5, 4, 5});
  EXPECT_EQ(drafted(drafter, 5), (Tokens{4, 5, 4, 5, 4}));
}

TEST(NgramDrafter, looks_a_prediction_up_but_does_not_draft_beyond_it) {
  NgramDrafter drafter(0);
  drafter.expect(numbers(1, 6));
  drafter.add(numbers(20, 30));
  EXPECT_EQ(drafted(drafter, 4), Tokens());
  drafter.add(numbers(2, 4));
  EXPECT_EQ(drafted(drafter, 4), numbers(5, 6));
  drafter.add(numbers(5, 6));
  EXPECT_EQ(drafted(drafter, 4), Tokens());
  // Nor does a repetition reach over the prediction's end.
  NgramDrafter over(0);
  over.expect(Tokens{1});
  over.expect(Tokens{2});
  over.add(Tokens{3, 4, 1, 2, 3});
  EXPECT_EQ(drafted(over, 4), Tokens());
}

// While at most kCandidatesMost places hold the last gram, it finds what a search finds.
TEST(NgramDrafter, drafts_as_a_search_through_all_of_the_text_does) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const TokenId vocabulary = 2 + static_cast<TokenId>(seed % 5) * 3;
    NgramDrafter drafter(0);
    Tokens text;
    size_t found = 0;
    while (text.size() < 600) {
      const auto token = static_cast<TokenId>(random() % static_cast<uint64_t>(vocabulary));
      text.push_back(token);
      drafter.add(std::array{token});
      size_t longest = 0;
      size_t places = 0;
      for (size_t end = 0; end + 1 < text.size(); ++end) {
        size_t length = 0;
        while (length <= end && length < kMatchMost &&
               text[end - length] == text[text.size() - 1 - length]) {
          ++length;
        }
        places += length >= kGram ? 1 : 0;
        longest = std::max(longest, length);
      }
      const Tokens draft = drafted(drafter, 1);
      ASSERT_EQ(draft.size(), longest >= kGram ? 1U : 0U) << "seed " << seed;
      if (draft.empty() || places > kCandidatesMost) continue;
      ++found;
      // The drafted token stands behind some repetition of that length.
      Tokens repeated(text.end() - static_cast<std::ptrdiff_t>(longest), text.end());
      repeated.push_back(draft.front());
      EXPECT_NE(std::search(text.begin(), text.end(), repeated.begin(), repeated.end()), text.end())
          << "seed " << seed << " after " << text.size();
    }
    EXPECT_TRUE(found > 0 || vocabulary == 2) << "seed " << seed;
  }
}

TEST(NgramDrafter, takes_no_more_memory_than_it_says) {
  NgramDrafter drafter(0);
  const size_t empty = drafter.memory_bytes();
  std::mt19937_64 random(1);
  for (size_t count = 1; count <= 100'000; ++count) {
    drafter.add(std::array{static_cast<TokenId>(random() % 30)});
    ASSERT_LE(drafter.memory_bytes(), empty + count * NgramDrafter::kBytesPerToken) << count;
  }
}

TEST(NgramDrafter, needs_no_more_memory_where_it_is_told_how_much_will_come) {
  for (const size_t count : {300U, 5'000U, 70'000U}) {
    NgramDrafter told(count);
    NgramDrafter grown(0);
    const Tokens text = numbers(1, static_cast<TokenId>(count));
    told.add(text);
    grown.add(text);
    EXPECT_LE(told.memory_bytes(), grown.memory_bytes()) << count;
  }
  EXPECT_LE(NgramDrafter(SIZE_MAX).memory_bytes(), NgramDrafter::kTokensMost * sizeof(uint32_t));
}

TEST(NgramDrafter, takes_nothing_more_in_and_drafts_nothing_beyond_its_limit) {
  NgramDrafter drafter(0);
  const Tokens block(1U << 16U, 3);
  for (size_t added = 0; added < NgramDrafter::kTokensMost; added += block.size()) {
    drafter.add(block);
  }
  EXPECT_EQ(drafted(drafter, 3), Tokens(3, 3));
  const size_t full = drafter.memory_bytes();
  drafter.add(block);
  EXPECT_EQ(drafted(drafter, 3), Tokens());
  EXPECT_EQ(drafter.memory_bytes(), full);
}

std::string refusal_of(const char* names, bool has_file) {
  const auto choice = choose_drafters(names, has_file);
  return choice ? "" : choice.error().message;
}

TEST(Drafters, are_chosen_by_name) {
  EXPECT_EQ(choose_drafters("none", true)->row, nullptr);
  EXPECT_EQ(choose_drafters("none", true)->stage, "");
  for (const bool has_file : {false, true}) {
    EXPECT_EQ(choose_drafters("auto", has_file)->row, &drafter_rows().front());
    EXPECT_EQ(choose_drafters("auto", has_file)->has_file, has_file);
  }
  const std::pair<std::string, bool> stages[] = {
      {"draft", true}, {"eagle3", true}, {"mtp", false}, {"mtp", true}};
  for (const auto& [stage, has_file] : stages) {
    EXPECT_EQ(choose_drafters(stage, has_file)->row, nullptr);
    EXPECT_EQ(choose_drafters(stage, has_file)->stage, stage);
    EXPECT_EQ(choose_drafters(stage, has_file)->has_file, has_file);
    for (const DrafterRow& row : drafter_rows()) {
      const auto both = choose_drafters(std::string(row.name) + "," + stage, has_file);
      EXPECT_EQ(both->row, &row);
      EXPECT_EQ(both->stage, stage);
    }
  }
  for (const DrafterRow& row : drafter_rows()) {
    EXPECT_EQ(choose_drafters(row.name, true)->row, &row);
    EXPECT_EQ(choose_drafters(row.name, true)->stage, "");
    EXPECT_NE(row.make(0), nullptr);
  }
}

TEST(Drafters, that_cannot_be_asked_are_refused_with_a_reason) {
  for (const char* const names : {"ngram,draft", "draft", "eagle3", "ngram,eagle3"}) {
    EXPECT_NE(refusal_of(names, false).find("--draft-model"), std::string::npos) << names;
  }
  for (const char* const names : {"mtp,draft", "draft,eagle3", "eagle3,ngram,mtp"}) {
    EXPECT_NE(refusal_of(names, true).find("exclude one another"), std::string::npos) << names;
  }
  const std::string unknown = refusal_of("oracle", false);
  for (const char* const name : {"oracle", "ngram", "mtp", "draft", "eagle3"}) {
    EXPECT_NE(unknown.find(name), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace lockstep
