// The cut of a text into the tokens whose scores have the largest sum, of equal ones that whose
// tokens begin first, made while the text is read.
//
// All ways pass a place that no token crosses: there the tokens before it are known, and what was
// needed for them is used again. In a text of words that is so at every word. Where tokens cross
// everywhere, all ways are followed back from time to time, to where they part: what lies before is
// known, too. From there on 5 bytes are held for each of the text's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/token_id.h"
#include "engine/text/token_index.h"

namespace lockstep {

struct UnigramVocabulary {
  // By id; both are borrowed.
  std::span<const std::string> texts;
  std::span<const float> scores;
  PrefixIndex prefixes;  // of the tokens into which texts are cut
  size_t text_bytes_max = 0;
  // The score of a character that is no token. It becomes the tokens of its bytes, or, where there
  // are none, with all such characters beside it the unknown token.
  double unknown_score = 0;
  std::vector<TokenId> bytes;  // by byte, or empty
  TokenId unknown = 0;
};

class UnigramCut {
 public:
  // All are borrowed. The cut ends once there are more than `tokens_max` tokens, or it is clear
  // that there will be: then there are more, and what the last of them are does not matter.
  UnigramCut(const UnigramVocabulary& vocabulary, size_t tokens_max, std::vector<TokenId>& tokens);
  ~UnigramCut();
  UnigramCut(const UnigramCut&) = delete;
  UnigramCut& operator=(const UnigramCut&) = delete;

  // The text goes on.
  void append(std::string_view text);
  // The text ends; the next one may begin.
  void finish();
  bool is_full() const { return tokens_.size() > tokens_max_; }

 private:
  // The best way to a place, beside its last token.
  struct Way {
    double score = 0;
    uint64_t tokens = 0;  // so many
  };
  static constexpr TokenId kNotReached = std::numeric_limits<TokenId>::min();
  static constexpr TokenId kStart = kNotReached + 1;
  static constexpr TokenId kUnknownMin = -4;  // a character of -n bytes that is no token
  static bool is_unknown(TokenId last) { return last < 0 && last >= kUnknownMin; }

  Way& way(size_t place) { return ways_[(dropped_ + place) & (ways_.size() - 1)]; }
  size_t size_of(TokenId last) const;
  void begin_text();
  // Takes the tokens that begin before `end`.
  void go_on(size_t end);
  // Takes the tokens that begin at the place, and goes to the next character.
  void take_tokens();
  void offer(TokenId last, double score, uint64_t tokens);
  // For tokens of so many bytes.
  void widen_ways(size_t reach);
  // Follows all ways back to where they part.
  void look_back();
  // All ways pass `place`.
  void settle(size_t place);
  void emit_backwards(std::string_view character, bool follows_unknown);
  void drop_settled();
  void note_held();

  const UnigramVocabulary& vocabulary_;
  size_t tokens_max_;
  std::vector<TokenId>& tokens_;
  size_t tokens_before_ = 0;  // the text

  // Places count from the first byte that is still here.
  std::string text_;
  std::vector<TokenId> last_;  // by place: the last token of the best way there
  std::vector<Way> ways_;      // of the places that a token from here may reach, in a ring
  uint64_t dropped_ = 0;       // bytes before the first place
  size_t settled_ = 0;         // the tokens before it are known
  size_t place_ = 0;           // from which tokens begin next
  size_t farthest_ = 0;        // that is reached
  size_t next_look_ = 0;       // the place at which look_back() is due
  uint64_t characters_ = 0;
  size_t noted_bytes_ = 0;
};

}  // namespace lockstep
