// A drafter's cache: what its pages hold of a text is found again, and nothing else.
#include "engine/drafting/draft_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <vector>

namespace lockstep {
namespace {

constexpr size_t kPage = 4;
using Tokens = std::vector<TokenId>;

TextBorders borders_of(const Tokens& text) {
  TextBorders borders;
  borders.grow(text, kPage);
  return borders;
}

TEST(TextBorders, are_those_of_the_text_however_it_has_grown) {
  const Tokens text = {5, 6, 7, 8, 9, 10, 11, 12, 13};
  TextBorders slowly;
  for (size_t count = 0; count <= text.size(); ++count) {
    slowly.grow(std::span(text).first(count), kPage);
    EXPECT_EQ(slowly.count(), 1 + count / kPage);
  }
  const TextBorders at_once = borders_of(text);
  for (size_t page = 0; page < at_once.count(); ++page) {
    EXPECT_EQ(slowly.before(page), at_once.before(page));
  }
  EXPECT_NE(borders_of({5, 6, 7, 8}).before(1), borders_of({5, 6, 8, 7}).before(1));
}

TEST(DraftPages, know_what_was_written_up_to_where_it_differs) {
  DraftPages pages(8, kPage);
  const Tokens text = {1, 2, 3, 4, 5, 6, 7};
  const TextBorders borders = borders_of(text);
  const std::array<uint32_t, 2> table = {3, 6};
  EXPECT_EQ(pages.known(text, borders, table), 0U);
  pages.write(3, borders.before(0), 0, std::array<TokenId, 4>{1, 2, 3, 4});
  EXPECT_EQ(pages.known(text, borders, table), 4U);
  pages.write(6, borders.before(1), 0, std::array<TokenId, 3>{5, 9, 9});  // drafted ones
  EXPECT_EQ(pages.known(text, borders, table), 5U) << "but not the rejected ones";
  pages.write(6, borders.before(1), 1, std::array<TokenId, 2>{6, 7});
  EXPECT_EQ(pages.known(text, borders, table), 7U);
  EXPECT_EQ(pages.known(Tokens{1, 2, 3, 4}, borders_of({1, 2, 3, 4}), table), 4U);
  pages.clear(std::array{3U});
  EXPECT_EQ(pages.known(text, borders, table), 0U) << "what is behind has no beginning";
}

TEST(DraftPages, are_written_over_their_borders) {
  DraftPages pages(8, kPage);
  const Tokens text = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const TextBorders borders = borders_of(text);
  const std::array<uint32_t, 3> table = {3, 6, 1};
  pages.write_text(table, borders, 0, std::span(text).first(3));
  EXPECT_EQ(pages.known(text, borders, table), 3U);
  pages.write_text(table, borders, 3, std::span(text).subspan(3));
  EXPECT_EQ(pages.known(text, borders, table), 10U);
}

TEST(DraftPages, are_to_be_cleared_once) {
  DraftPages pages(8, kPage);
  pages.clear(std::array{3U, 5U});
  pages.clear(std::array{5U, 1U});
  std::vector<uint32_t> cleared = {7};
  pages.take_cleared(cleared);
  EXPECT_EQ(cleared, (std::vector<uint32_t>{3, 5, 1}));
  pages.take_cleared(cleared);
  EXPECT_TRUE(cleared.empty());
  pages.clear(std::array{5U});
  pages.take_cleared(cleared);
  EXPECT_EQ(cleared, std::vector<uint32_t>{5});
}

TEST(DraftPages, of_another_text_with_the_same_tokens_are_not_known) {
  DraftPages pages(4, kPage);
  const Tokens one = {1, 1, 1, 1, 5, 6};
  const Tokens other = {2, 2, 2, 2, 5, 6};
  pages.write(0, borders_of(one).before(0), 0, std::array<TokenId, 4>{1, 1, 1, 1});
  pages.write(1, borders_of(one).before(1), 0, std::array<TokenId, 2>{5, 6});
  pages.write(2, borders_of(other).before(0), 0, std::array<TokenId, 4>{2, 2, 2, 2});
  EXPECT_EQ(pages.known(one, borders_of(one), std::array<uint32_t, 2>{0, 1}), 6U);
  EXPECT_EQ(pages.known(other, borders_of(other), std::array<uint32_t, 2>{2, 1}), 4U);
}

// Pages change hands, texts go on and are cut: a model of what every place holds is never
// contradicted.
TEST(DraftPages, never_know_what_a_place_does_not_hold) {
  constexpr size_t kPages = 6;
  std::mt19937 random(11);
  const auto below = [&](size_t most) { return random() % most; };
  DraftPages pages(kPages, kPage);
  // By page and place: the text up to the token that was written there.
  std::map<std::pair<uint32_t, size_t>, Tokens> written;
  size_t found = 0;
  for (int step = 0; step < 20'000; ++step) {
    Tokens text(1 + below(3 * kPage), 0);
    for (TokenId& token : text) token = static_cast<TokenId>(below(2));
    std::vector<uint32_t> table(kPages);
    for (size_t page = 0; page < kPages; ++page) table[page] = static_cast<uint32_t>(page);
    if (below(2) == 0) std::ranges::shuffle(table, random);
    table.resize((text.size() + kPage - 1) / kPage);
    const TextBorders borders = borders_of(text);
    const size_t known = pages.known(text, borders, table);
    found += known;
    for (size_t index = 0; index < known; ++index) {
      const Tokens& held = written[{table[index / kPage], index % kPage}];
      ASSERT_EQ(held, Tokens(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(index) + 1));
    }
    const size_t end = known + below(text.size() - known + 1);
    for (size_t begin = known; begin < end;) {
      const size_t page = begin / kPage;
      const size_t piece = std::min(end, (page + 1) * kPage) - begin;
      pages.write(table[page], borders.before(page), begin % kPage,
                  std::span(text).subspan(begin, piece));
      for (size_t index = begin; index < begin + piece; ++index) {
        written[{table[page], index % kPage}].assign(
            text.begin(), text.begin() + static_cast<std::ptrdiff_t>(index) + 1);
      }
      begin += piece;
    }
    if (below(20) == 0) pages.clear(std::array{static_cast<uint32_t>(below(kPages))});
  }
  EXPECT_GT(found, 1000U);
}

}  // namespace
}  // namespace lockstep
