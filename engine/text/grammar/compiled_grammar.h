// A grammar that was compiled for a vocabulary.
#pragma once

#include <atomic>
#include <memory>

#include "engine/base/mutex.h"
#include "engine/text/grammar.h"
#include "engine/text/grammar/automaton.h"
#include "engine/text/grammar/mask_memory.h"

namespace lockstep {

class Grammar {
 public:
  // All that live, together: more are not compiled, and masks beyond it not remembered.
  static constexpr size_t kLiveBytesMax = size_t{512} << 20U;

  Grammar(Automaton automaton, std::shared_ptr<const TokenTrie> trie);
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  const Automaton& automaton() const { return automaton_; }
  const TokenTrie& trie() const { return *trie_; }
  // As MaskMemory::allow(). Any thread.
  bool allow(const Configuration& at, const Stacks& stacks, TokenMask& mask) const;
  void prepare(std::chrono::steady_clock::time_point until) const;
  // Grows as masks are remembered, up to a bound. Waits for nobody.
  size_t size_bytes() const { return size_bytes_.load(std::memory_order_relaxed); }
  // The bytes of all grammars of the process.
  static size_t live_bytes() { return live_bytes_.load(std::memory_order_relaxed); }

 private:
  void note_size() const LOCKSTEP_REQUIRES(mutex_);

  static inline std::atomic<size_t> live_bytes_ = 0;
  Automaton automaton_;
  std::shared_ptr<const TokenTrie> trie_;  // shared by all grammars of a vocabulary
  mutable Mutex mutex_;
  mutable MaskMemory memory_ LOCKSTEP_GUARDED_BY(mutex_);
  mutable std::atomic<size_t> size_bytes_ = 0;
};

// Fails with kInvalidInput: what is wrong with the source, and where; or that it is too much. With
// kUnavailable while the grammars that live have more than `live_bytes_max`.
Result<std::shared_ptr<const Grammar>> compile_grammar(
    const GrammarSource& source, std::shared_ptr<const TokenTrie> trie,
    const GrammarLimits& limits = {}, size_t live_bytes_max = Grammar::kLiveBytesMax);

}  // namespace lockstep
