// How far one generated text has got in its grammar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/text/grammar/compiled_grammar.h"

namespace lockstep {

// Belongs to one thread.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);

  // The tokens that may come next; without the ends. Valid until the next call. Fails for a grammar
  // that has become too ambiguous.
  Result<TokenMask*> allowed();

  // Takes a token that is allowed. Fails if it is not, and where the text goes deeper into the
  // grammar than the limits of Steps; the matcher is of no use then.
  Result<void> accept(TokenId token);

  // How many of these tokens, from the first one on, accept() would take one after the other.
  // Leaves everything as it was.
  size_t fitting(std::span<const TokenId> tokens);

  // Writes tokens of the text that has to follow in any answer: the longest one of its next
  // bytes, and so on. Returns how many; 0, where more than one byte may follow, or the end. Other
  // tokens may spell the same. Leaves everything as it was.
  size_t forced(std::span<TokenId> tokens);

  // The text may end here.
  bool can_end() const { return at_.ended; }
  // And nothing can follow.
  bool must_end() const { return at_.heads.empty(); }

  // Stacks that are remembered.
  size_t stack_count() const { return stacks_.size(); }

 private:
  static constexpr size_t kStacksMin = 4096;

  // The place behind a token, from `from` on; false: it is not allowed there, or accept() would
  // fail.
  bool pass_over(TokenId token, Configuration& from);
  // The one byte that can follow there.
  std::optional<uint8_t> only_byte(const Configuration& at) const;
  void forget_left_stacks();

  std::shared_ptr<const Grammar> grammar_;
  Steps steps_;
  Stacks stacks_;
  Configuration at_;
  Configuration next_;  // reused
  TokenMask mask_;
  size_t stacks_until_forgetting_ = kStacksMin;  // so many; then those that were left
  bool usable_ = true;
};

}  // namespace lockstep
