// A grammar that was compiled for a vocabulary.
#pragma once

#include <memory>
#include <mutex>

#include "engine/text/grammar.h"
#include "engine/text/grammar/automaton.h"
#include "engine/text/grammar/mask_memory.h"

namespace lockstep {

class Grammar {
 public:
  Grammar(Automaton automaton, std::shared_ptr<const TokenTrie> trie);

  const Automaton& automaton() const { return automaton_; }
  const TokenTrie& trie() const { return *trie_; }
  // As MaskMemory::allow(). Any thread.
  bool allow(const Configuration& at, const Stacks& stacks, TokenMask& mask) const;
  void prepare(std::chrono::steady_clock::time_point until) const;
  // Grows as masks are remembered, up to a bound.
  size_t size_bytes() const;

 private:
  Automaton automaton_;
  std::shared_ptr<const TokenTrie> trie_;  // shared by all grammars of a vocabulary
  mutable std::mutex mutex_;
  mutable MaskMemory memory_;  // guarded by mutex_
};

// Fails with kInvalidInput: what is wrong with the source, and where; or that it is too much.
Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSource& source,
                                                       std::shared_ptr<const TokenTrie> trie,
                                                       const GrammarLimits& limits = {});

}  // namespace lockstep
