#include "engine/text/grammar/grammar_matcher.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace lockstep {
namespace {

constexpr size_t kVisitsMax = 65536;       // of states, for one token
constexpr size_t kStacksLiveMax = 32'768;  // of those that the text is within

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), steps_(grammar_->automaton()), mask_(grammar_->trie()) {
  usable_ = steps_.enter(grammar_->automaton().root(), Stacks::kBottom, stacks_, at_);
}

Result<TokenMask*> GrammarMatcher::allowed() {
  mask_.clear();
  if (!usable_ || !grammar_->allow(at_, stacks_, mask_)) {
    return invalid_input(
        "the grammar is too ambiguous here: too many ways to go on at the same time; simplify it");
  }
  return &mask_;
}

Result<void> GrammarMatcher::accept(TokenId token) {
  const std::string_view text = grammar_->trie().text(token);
  size_t visits = 0;
  for (const char byte : text) {
    if (!usable_ || visits > kVisitsMax ||
        !steps_.step(at_, static_cast<uint8_t>(byte), stacks_, next_)) {
      usable_ = false;
      return invalid_input(
          "the answer goes deeper into the grammar than {} rules, or the grammar is too ambiguous",
          Steps::kDepthMax);
    }
    visits += steps_.visits();
    std::swap(at_, next_);
  }
  if (text.empty() || (at_.heads.empty() && !at_.ended)) {
    usable_ = false;
    return invalid_input("the grammar does not allow token {} here", token);
  }
  if (stacks_.size() <= stacks_until_forgetting_) return {};
  forget_left_stacks();
  if (stacks_.size() > kStacksLiveMax) {
    usable_ = false;
    return invalid_input("the grammar is too ambiguous: the answer is within {} rules at once",
                         stacks_.size());
  }
  return {};
}

bool GrammarMatcher::pass_over(TokenId token, Configuration& from) {
  const std::string_view text = grammar_->trie().text(token);
  size_t visits = 0;
  for (const char byte : text) {
    if (visits > kVisitsMax || !steps_.step(from, static_cast<uint8_t>(byte), stacks_, next_)) {
      return false;
    }
    visits += steps_.visits();
    std::swap(from, next_);
  }
  return !text.empty() && (!from.heads.empty() || from.ended);
}

size_t GrammarMatcher::fitting(std::span<const TokenId> tokens) {
  // Stacks of guesses would be counted among the text's own.
  struct Mark {
    Stacks& stacks;
    const size_t size;

    ~Mark() { stacks.truncate(size); }
  };
  const Mark mark{stacks_, stacks_.size()};
  Configuration at = at_;
  size_t count = 0;
  while (usable_ && count < tokens.size() && pass_over(tokens[count], at)) ++count;
  return count;
}

void GrammarMatcher::forget_left_stacks() {
  Stacks kept;
  std::unordered_map<StackId, StackId> moved = {{Stacks::kBottom, Stacks::kBottom}};
  std::vector<StackId> path;
  for (Head& head : at_.heads) {
    path.clear();
    StackId at = head.stack;
    for (; !moved.contains(at); at = stacks_[at].parent) path.push_back(at);
    StackId to = moved.at(at);
    for (; !path.empty(); path.pop_back()) {
      to = kept.push(stacks_[path.back()].state, to);
      moved.emplace(path.back(), to);
    }
    head.stack = to;
  }
  std::ranges::sort(at_.heads);
  stacks_ = std::move(kept);
  stacks_until_forgetting_ = std::max(2 * stacks_.size(), kStacksMin);
}

}  // namespace lockstep
