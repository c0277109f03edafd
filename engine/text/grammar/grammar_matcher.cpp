#include "engine/text/grammar/grammar_matcher.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace lockstep {
namespace {

constexpr size_t kVisitsMax = 65536;       // of states, for one token
constexpr size_t kStacksLiveMax = 32'768;  // of those that the text is within
constexpr size_t kForcedBytesMax = 256;    // that are looked for ahead

// Pushes on stacks for guesses, which would be counted among the text's own.
class Guesses {
 public:
  explicit Guesses(Stacks& stacks) : stacks_(stacks), size_(stacks.size()) {}
  ~Guesses() { stacks_.truncate(size_); }
  Guesses(const Guesses&) = delete;
  Guesses& operator=(const Guesses&) = delete;

 private:
  Stacks& stacks_;
  const size_t size_;
};

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
  const Guesses guesses(stacks_);
  Configuration at = at_;
  size_t count = 0;
  while (usable_ && count < tokens.size() && pass_over(tokens[count], at)) ++count;
  return count;
}

std::optional<uint8_t> GrammarMatcher::only_byte(const Configuration& at) const {
  std::optional<uint8_t> only;
  if (at.ended) return only;
  for (const Head& head : at.heads) {
    for (const ByteEdge& edge : grammar_->automaton().edges(head.state)) {
      if (edge.low != edge.high || edge.low != only.value_or(edge.low)) return std::nullopt;
      only = edge.low;
    }
  }
  return only;
}

size_t GrammarMatcher::forced(std::span<TokenId> tokens) {
  if (!usable_ || !only_byte(at_)) return 0;
  const Guesses guesses(stacks_);
  Configuration at = at_;
  std::string text;
  for (size_t visits = 0; text.size() < kForcedBytesMax && visits <= kVisitsMax;) {
    const auto byte = only_byte(at);
    if (!byte || !steps_.step(at, *byte, stacks_, next_)) break;
    visits += steps_.visits();
    std::swap(at, next_);
    text.push_back(static_cast<char>(*byte));
  }
  size_t count = 0;
  for (std::string_view left = text; count < tokens.size(); ++count) {
    const auto token = grammar_->trie().longest(left);
    if (!token) break;
    tokens[count] = *token;
    left.remove_prefix(grammar_->trie().text(*token).size());
  }
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
