#include "engine/text/grammar/stacks.h"

#include <algorithm>

namespace lockstep {
namespace {

// Up to so many are searched one by one.
constexpr size_t kFew = 24;

uint64_t pair_key(uint32_t high, uint32_t low) {
  return (uint64_t{high} << 32U) | low;
}

}  // namespace

void Stacks::clear() {
  nodes_.assign(1, Node{});
  numbers_.clear();
}

StackId Stacks::push(StateId state, StackId parent) {
  const auto [found, added] =
      numbers_.try_emplace(pair_key(state, parent), static_cast<StackId>(nodes_.size()));
  if (!added) return found->second;
  try {
    nodes_.push_back({state, parent, nodes_[parent].depth + 1});
  } catch (...) {
    numbers_.erase(found);
    throw;
  }
  return found->second;
}

void Stacks::truncate(size_t size) {
  for (; nodes_.size() > size; nodes_.pop_back()) {
    numbers_.erase(pair_key(nodes_.back().state, nodes_.back().parent));
  }
}

// The last move may have been cut off.
void Steps::begin() {
  visits_ = 0;
  open_.clear();
  seen_.clear();
  if (!seen_many_.empty()) seen_many_.clear();
}

void Steps::visit(StateId state, StackId stack) {
  const Head head{state, stack};
  ++visits_;
  if (seen_.size() < kFew) {
    if (std::ranges::find(seen_, head) != seen_.end()) return;
  } else {
    if (seen_many_.empty()) {
      for (const Head& known : seen_) seen_many_.emplace(pair_key(known.state, known.stack), true);
    }
    if (!seen_many_.emplace(pair_key(state, stack), true).second) return;
  }
  seen_.push_back(head);
  open_.push_back(head);
}

bool Steps::enter(StateId state, StackId stack, Stacks& stacks, Configuration& to) {
  begin();
  visit(state, stack);
  return close(stacks, to);
}

bool Steps::step(const Configuration& from, uint8_t byte, Stacks& stacks, Configuration& to) {
  begin();
  visits_ = from.heads.size();
  for (const Head& head : from.heads) {
    const StateId next = automaton_.next(head.state, byte);
    if (next != Automaton::kNoState) visit(next, head.stack);
  }
  return close(stacks, to);
}

// Follows calls and returns from what was visited.
bool Steps::close(Stacks& stacks, Configuration& to) {
  to.heads.clear();
  to.ended = false;
  bool fits = true;
  while (!open_.empty() && fits) {
    const Head head = open_.back();
    open_.pop_back();
    const AutomatonState& state = automaton_.state(head.state);
    if (state.edge_count > 0) to.heads.push_back(head);
    for (const CallEdge& call : automaton_.calls(head.state)) {
      // A call at the end of a rule returns to where the rule returns to.
      const bool last = automaton_.only_ends(call.target);
      const StackId stack = last ? head.stack : stacks.push(call.target, head.stack);
      fits = fits && stacks[stack].depth <= kDepthMax && visits_ <= kVisitsMax;
      if (!fits) break;
      visit(automaton_.start(call.rule), stack);
    }
    if (state.final) {
      if (head.stack == Stacks::kBottom) {
        to.ended = true;
      } else {
        const Stacks::Node& node = stacks[head.stack];
        visit(node.state, node.parent);
      }
    }
    fits = fits && visits_ <= kVisitsMax && to.heads.size() <= kHeadsMax;
  }
  std::ranges::sort(to.heads);
  return fits;
}

}  // namespace lockstep
