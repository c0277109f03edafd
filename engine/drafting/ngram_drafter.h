// Drafts what stood behind the longest repetition of the text's end: prompts are quoted, files
// repeated with a line changed, and answers go in circles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/drafting/drafter.h"
#include "engine/drafting/ngram.h"

namespace lockstep {

// The ends of each gram of kGram tokens are found by a hash table with chains, as compressors of
// the family LZ77 find matches. Takes time linear in the text: for a token a few steps, for a draft
// kVisitsMost at most, and kCandidatesMost comparisons of kMatchMost tokens.
//
// Memory: at most kBytesPerToken for each token of prediction, prompt and answer, and no more than
// kTokensMost of them; a longer text is not drafted from there on.
class NgramDrafter : public Drafter {
 public:
  static constexpr size_t kTokensMost = size_t{1} << 20U;
  // Token, chain and twice a place of the table, whose vectors may have grown to twice of what they
  // need.
  static constexpr size_t kBytesPerToken = 2 * 3 * sizeof(uint32_t);
  static constexpr size_t kLeastSlots = 256;  // of the table

  // The table begins with a place for so many tokens, and grows with the text: what a call of add()
  // takes is linear in what it is told, but for those that double the table.
  explicit NgramDrafter(size_t tokens);

  // The text begins behind them; they are looked up as a part of it.
  void expect(std::span<const TokenId> tokens) override;
  void add(std::span<const TokenId> tokens) override;
  size_t draft(std::span<TokenId> drafts) override;
  // The source's, at most kMatchMost.
  size_t match_length() const override { return source_ ? match_length(*source_) : 0; }

  size_t memory_bytes() const;

 private:
  void append(TokenId token);
  size_t slot(size_t end) const;
  void link(size_t end);
  void grow();
  size_t match_length(size_t end) const;

  std::vector<TokenId> text_;     // what was predicted, no token, prompt and answer
  std::vector<uint32_t> before_;  // by a gram's last position: that of the one before it in its
                                  // slot, and 1; 0: none
  std::vector<uint32_t> latest_;  // by slot: the last position of its latest gram, and 1; 0: none
  // The place that the last draft was copied from, as long as the text goes on as it does there:
  // the position of what the text's last token repeats.
  std::optional<size_t> source_;
  bool expects_ = false;  // expect() was the last to add something
  bool full_ = false;
};

}  // namespace lockstep
