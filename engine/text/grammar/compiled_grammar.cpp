#include "engine/text/grammar/compiled_grammar.h"

#include <utility>

#include "engine/text/grammar/automaton.h"
#include "engine/text/grammar/json_pieces.h"
#include "engine/text/grammar/sources.h"

namespace lockstep {
namespace {

// The part of a compilation's time for masks that will surely be wanted.
constexpr int kPreparingShare = 5;

ExpressionId read_source(GrammarDraft& draft, const GrammarSource& source) {
  using Kind = GrammarSource::Kind;
  switch (source.kind) {
    case Kind::kJsonObject:
      return json_any_object(draft);
    case Kind::kRegex:
      return read_regex(draft, source.text, {});
    case Kind::kGbnf:
      return read_gbnf(draft, source.text);
    case Kind::kJsonSchema:
    case Kind::kChoice:
    case Kind::kTemplate:
      break;
  }
  const auto json = parse_json(source.text, {.depth = draft.budget().limits().depth});
  if (!json) {
    draft.fail("{}", json.error().message);
    return draft.nothing();
  }
  if (source.kind == Kind::kChoice) return read_choice(draft, *json);
  return source.kind == Kind::kTemplate ? read_template(draft, *json)
                                        : read_schema(draft, *json, "");
}

}  // namespace

Grammar::Grammar(Automaton automaton, std::shared_ptr<const TokenTrie> trie)
    : automaton_(std::move(automaton)), trie_(std::move(trie)), memory_(automaton_, *trie_) {
  note_size();  // without the lock: no other thread knows this yet
}

Grammar::~Grammar() {
  live_bytes_.fetch_sub(size_bytes(), std::memory_order_relaxed);
}

void Grammar::note_size() const {
  const size_t now = sizeof(Grammar) + automaton_.size_bytes() + memory_.size_bytes();
  const size_t before = size_bytes_.exchange(now, std::memory_order_relaxed);
  live_bytes_.fetch_add(now - before, std::memory_order_relaxed);  // also where it has shrunk
}

bool Grammar::allow(const Configuration& at, const Stacks& stacks, TokenMask& mask) const {
  const MutexLock lock(mutex_);
  const bool allowed = memory_.allow(at, stacks, mask);
  constexpr size_t kWorthForgetting = size_t{1} << 20U;
  if (live_bytes() > kLiveBytesMax && memory_.size_bytes() > kWorthForgetting) memory_.forget();
  note_size();
  return allowed;
}

void Grammar::prepare(std::chrono::steady_clock::time_point until) const {
  const MutexLock lock(mutex_);
  memory_.prepare(until);
  note_size();
}

Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSource& source,
                                                       std::shared_ptr<const TokenTrie> trie,
                                                       const GrammarLimits& limits,
                                                       size_t live_bytes_max) {
  const auto start = std::chrono::steady_clock::now();
  if (Grammar::live_bytes() > live_bytes_max) {
    return unavailable("the grammars in use take {} MiB, more than there may be; try again later",
                       Grammar::live_bytes() >> 20U);
  }
  if (source.text.size() > limits.source_bytes) {
    return invalid_input("it has {} bytes; at most {} are taken", source.text.size(),
                         limits.source_bytes);
  }
  GrammarDraft draft(limits);
  const RuleId root = draft.add_rule("(root)");
  draft.set_root(root);
  draft.define(root, read_source(draft, source));
  auto automaton = build_automaton(draft);
  if (!automaton) return std::unexpected(automaton.error());
  auto grammar = std::make_shared<const Grammar>(std::move(*automaton), std::move(trie));
  const auto now = std::chrono::steady_clock::now();
  const auto left = limits.time - (now - start);
  if (left.count() > 0) grammar->prepare(now + left / kPreparingShare);
  return grammar;
}

}  // namespace lockstep
