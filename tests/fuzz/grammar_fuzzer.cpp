// Any bytes as a grammar source, the first of which says of which kind; if it compiles, the rest is
// followed for a while. It may be refused, and must do nothing worse, within small budgets.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "engine/text/grammar/grammar_matcher.h"
#include "engine/text/model_tokenizer.h"
#include "tests/engine/text/small_vocabularies.h"

namespace {

using lockstep::GrammarSource;

constexpr int kStepsMax = 24;

std::shared_ptr<const lockstep::TokenTrie> trie() {
  static const auto tokenizer = *lockstep::make_tokenizer(lockstep::small_byte_pair());
  static const auto made =
      std::make_shared<const lockstep::TokenTrie>(*tokenizer, tokenizer->vocabulary_size());
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  constexpr GrammarSource::Kind kKinds[] = {
      GrammarSource::Kind::kJsonSchema, GrammarSource::Kind::kRegex, GrammarSource::Kind::kGbnf,
      GrammarSource::Kind::kChoice, GrammarSource::Kind::kTemplate};
  const GrammarSource source = {kKinds[data[0] % std::size(kKinds)],
                                std::string(reinterpret_cast<const char*>(data) + 1, size - 1)};
  lockstep::GrammarLimits limits;
  limits.time = std::chrono::milliseconds(500);
  limits.bytes = size_t{8} << 20U;
  const auto grammar = lockstep::compile_grammar(source, trie(), limits);
  if (!grammar) {
    if (grammar.error().message.empty() || grammar.error().message.size() > 2000) std::abort();
    return 0;
  }
  lockstep::GrammarMatcher matcher(*grammar);
  for (int step = 0; step < kStepsMax && !matcher.must_end(); ++step) {
    const auto mask = matcher.allowed();
    if (!mask) return 0;
    // Whatever comes up can go on: every state leads to an end.
    if ((*mask)->count() == 0) std::abort();
    const size_t start = data[static_cast<size_t>(step) % size];
    for (size_t index = 0; index < trie()->vocabulary_size(); ++index) {
      const auto token =
          static_cast<lockstep::TokenId>((start + index) % trie()->vocabulary_size());
      if (!(*mask)->allows(token)) continue;
      if (!matcher.accept(token)) return 0;
      break;
    }
  }
  return 0;
}
