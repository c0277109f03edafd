// Drafts what stood in an earlier answer behind the text's last tokens: a tenant asks for the same
// again, with a word changed, or for a form that answers share. Belongs to one thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/token_id.h"
#include "engine/drafting/ngram.h"

namespace lockstep {

// The requests that draft from one another's answers: those that agree in all of this, as
// interface/request.h has it. Others neither have such drafts nor see from their time that there
// are any.
struct AnswerScope {
  std::string tenant;
  std::string owner;
  std::string salt;

  auto operator<=>(const AnswerScope&) const = default;
};

// The place in a window of what a text's last token repeats.
struct AnswerPlace {
  uint32_t place = 0;
  size_t text_tokens = 0;  // the text's, then
  size_t match = 0;        // how many of its last tokens stand there, at most kMatchMost
};

// The last tokens of texts, one behind another, in a ring; a new token takes the oldest one's
// place. The ends of grams are found by a hash table with chains, as NgramDrafter finds them, but a
// place that is no longer held is not cleared: what is found is compared with the text.
class AnswerWindow {
 public:
  // Holds so many tokens: a power of two. Takes bytes(tokens) at once.
  explicit AnswerWindow(size_t tokens);

  void add(TokenId token);
  // Writes what stood behind the longest repetition of the text's end, up to the end of the text
  // that it stands in, and where that was; returns how many tokens: 0, and no place, where fewer
  // than kGram are repeated. A given place is followed where the text goes on as it does there.
  size_t draft(std::span<const TokenId> text, std::optional<AnswerPlace>& place,
               std::span<TokenId> drafts) const;

  static size_t bytes(size_t tokens) { return tokens * (sizeof(TokenId) + 2 * sizeof(uint32_t)); }

 private:
  uint32_t at(uint32_t place) const { return place & mask_; }
  bool holds(uint32_t place) const;
  size_t match_length(std::span<const TokenId> text, uint32_t place) const;

  const uint32_t mask_;
  uint32_t end_ = 0;   // tokens that were added; places are counted so, and begin again at 2^32
  uint32_t held_ = 0;  // the last ones
  std::vector<TokenId> tokens_;   // by place
  std::vector<uint32_t> before_;  // by place: the steps back to the one before it in its slot; 0:
                                  // it is the first
  std::vector<uint32_t> latest_;  // by slot: the last place of a gram
};

// The windows of all scopes.
//
// Memory: a window's for each of `scopes`, and as many tokens that wait as one holds. Where there
// are more scopes, one of the tenant that has the most goes, the one that has learned nothing for
// the longest: so a tenant with many salts takes no other's.
class EarlierAnswers {
 public:
  struct Limits {
    size_t scopes = 16;
    size_t tokens = size_t{1} << 16U;  // of one scope: a power of two
  };

  EarlierAnswers() : EarlierAnswers(Limits()) {}
  explicit EarlierAnswers(const Limits& limits) : limits_(limits) {}

  // An answer, with the prompt's last tokens before it. It waits for learn(). Of a text that is
  // longer than a window its end is kept. One for which there is no memory, or too many wait before
  // it, is forgotten.
  void tell(const AnswerScope& scope, std::span<const TokenId> text) noexcept;
  // Takes in so many tokens at most of what waits, in the order in which it was told. The time is
  // linear in them.
  void learn(size_t most) noexcept;
  // AnswerWindow::draft() of the scope's.
  size_t draft(const AnswerScope& scope, std::span<const TokenId> text,
               std::optional<AnswerPlace>& place, std::span<TokenId> drafts) const;

  bool knows(const AnswerScope& scope) const { return windows_.contains(scope); }
  size_t waiting_tokens() const { return waiting_tokens_; }
  size_t memory_bytes() const;  // of windows and of what waits

 private:
  struct Window {
    AnswerWindow tokens;
    uint64_t last_learned = 0;
  };
  struct Waiting {
    AnswerScope scope;
    std::vector<TokenId> text;
    size_t learned = 0;
  };

  AnswerWindow& window_of(const AnswerScope& scope);
  void drop_scope();

  const Limits limits_;
  std::map<AnswerScope, Window> windows_;
  std::deque<Waiting> waiting_;
  size_t waiting_tokens_ = 0;  // that have not been learned
  uint64_t learned_ = 0;       // texts
};

}  // namespace lockstep
