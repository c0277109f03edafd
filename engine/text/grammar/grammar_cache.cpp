#include "engine/text/grammar/grammar_cache.h"

#include <algorithm>
#include <utility>

namespace lockstep {

Result<std::shared_ptr<const Grammar>> GrammarCache::find_or_compile(const GrammarSource& source) {
  if (auto known = find(source)) return known;
  std::call_once(trie_made_,
                 [&] { trie_ = std::make_shared<TokenTrie>(tokenizer_, vocabulary_size_); });
  auto compiled = compile_grammar(source, trie_);
  if (compiled) keep(source, *compiled);
  return compiled;
}

std::shared_ptr<const Grammar> GrammarCache::find(const GrammarSource& source) {
  std::list<Kept> surplus;
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find(kept_, source, &Kept::source);
  auto grammar = found == kept_.end() ? nullptr : found->grammar;
  if (grammar) kept_.splice(kept_.begin(), kept_, found);
  surplus = take_surplus();
  return grammar;
}

void GrammarCache::keep(const GrammarSource& source,
                        const std::shared_ptr<const Grammar>& grammar) {
  std::list<Kept> surplus;
  const MutexLock lock(mutex_);
  kept_.push_front({source, grammar});
  surplus = take_surplus();
}

// Grammars grow while they are kept: so whenever one is asked for.
std::list<GrammarCache::Kept> GrammarCache::take_surplus() {
  std::list<Kept> surplus;
  size_t count = 0;
  size_t bytes = 0;
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    const auto next = std::next(kept);
    bytes += kept->grammar->size_bytes() + kept->source.text.size();
    const bool too_much = ++count > kCountMax || (count > 1 && bytes > kBytesMax);
    if (too_much) surplus.splice(surplus.end(), kept_, kept);
    kept = next;
  }
  return surplus;
}

}  // namespace lockstep
