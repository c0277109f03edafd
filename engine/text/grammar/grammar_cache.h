// The grammars of one vocabulary that were asked for last.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "engine/base/mutex.h"
#include "engine/text/grammar/compiled_grammar.h"

namespace lockstep {

// Any thread.
class GrammarCache {
 public:
  static constexpr size_t kCountMax = 64;
  static constexpr size_t kBytesMax = size_t{128} << 20U;  // with the masks that they remember

  // The tokenizer must outlive this. The trie of its tokens is made when it is first needed.
  GrammarCache(const Tokenizer& tokenizer, size_t vocabulary_size)
      : tokenizer_(tokenizer), vocabulary_size_(vocabulary_size) {}

  // As compile_grammar(). Two threads that ask for the same at once may both compile it.
  Result<std::shared_ptr<const Grammar>> find_or_compile(const GrammarSource& source);

 private:
  struct Kept {
    GrammarSource source;
    std::shared_ptr<const Grammar> grammar;
  };

  std::shared_ptr<const Grammar> find(const GrammarSource& source);
  void keep(const GrammarSource& source, const std::shared_ptr<const Grammar>& grammar);
  // Takes out what is too much, to be destroyed when mutex_ is free.
  std::list<Kept> take_surplus() LOCKSTEP_REQUIRES(mutex_);

  const Tokenizer& tokenizer_;
  size_t vocabulary_size_;
  std::once_flag trie_made_;
  std::shared_ptr<const TokenTrie> trie_;
  Mutex mutex_;
  std::list<Kept> kept_ LOCKSTEP_GUARDED_BY(mutex_);  // the last used first
};

}  // namespace lockstep
