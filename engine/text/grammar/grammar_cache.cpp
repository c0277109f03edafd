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
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, source, &Kept::source);
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return found->grammar;
}

void GrammarCache::keep(const GrammarSource& source,
                        const std::shared_ptr<const Grammar>& grammar) {
  const std::lock_guard lock(mutex_);
  kept_.push_front({source, grammar});
  size_t count = 0;
  size_t bytes = 0;
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    bytes += kept->grammar->size_bytes() + kept->source.text.size();
    const bool too_much = ++count > kCountMax || (count > 1 && bytes > kBytesMax);
    kept = too_much ? kept_.erase(kept) : std::next(kept);
  }
}

}  // namespace lockstep
