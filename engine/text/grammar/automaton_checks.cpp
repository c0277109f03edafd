#include "engine/text/grammar/automaton_checks.h"

#include <algorithm>

namespace lockstep {
namespace {

// Marks what follows from marks until nothing more does. `waits` lists, by a state, the calls and
// edges that its mark may complete.
class Marking {
 public:
  // With `bytes`, edges that read a byte carry marks, too.
  Marking(const Automaton& automaton, bool bytes) {
    const size_t count = automaton.state_count();
    marked_.assign(count, false);
    waiting_.resize(count);
    for (StateId from = 0; from < count; ++from) {
      if (bytes) {
        for (const ByteEdge& edge : automaton.edges(from)) {
          waiting_[edge.target].push_back({from, edge.target});
        }
      }
      for (const CallEdge& call : automaton.calls(from)) {
        const StateId start = automaton.start(call.rule);
        waiting_[call.target].push_back({from, start});
        waiting_[start].push_back({from, call.target});
      }
    }
    for (StateId id = 0; id < count; ++id) {
      if (automaton.state(id).final) mark(id);
    }
    while (!open_.empty()) {
      const StateId id = open_.back();
      open_.pop_back();
      for (const Waiting& waiting : waiting_[id]) {
        if (marked_[waiting.other]) mark(waiting.from);
      }
    }
  }

  std::vector<bool> take() { return std::move(marked_); }

 private:
  struct Waiting {
    StateId from;
    StateId other;  // must be marked as well
  };

  void mark(StateId id) {
    if (marked_[id]) return;
    marked_[id] = true;
    open_.push_back(id);
  }

  std::vector<bool> marked_;
  std::vector<std::vector<Waiting>> waiting_;
  std::vector<StateId> open_;
};

// By rule: the rules that it can call before a byte is read.
std::vector<std::vector<RuleId>> find_first_calls(const Automaton& automaton, size_t rule_count,
                                                  const std::vector<bool>& nullable) {
  std::vector<std::vector<RuleId>> first(rule_count);
  std::vector<RuleId> seen(automaton.state_count(), UINT32_MAX);
  for (RuleId rule = 0; rule < rule_count; ++rule) {
    std::vector<StateId> open = {automaton.start(rule)};
    seen[open[0]] = rule;
    while (!open.empty()) {
      const StateId id = open.back();
      open.pop_back();
      for (const CallEdge& call : automaton.calls(id)) {
        first[rule].push_back(call.rule);
        if (!nullable[automaton.start(call.rule)] || seen[call.target] == rule) continue;
        seen[call.target] = rule;
        open.push_back(call.target);
      }
    }
  }
  return first;
}

}  // namespace

std::vector<bool> find_productive(const Automaton& automaton) {
  return Marking(automaton, /*bytes=*/true).take();
}

std::optional<RuleId> find_left_recursion(const Automaton& automaton, size_t rule_count) {
  const std::vector<bool> nullable = Marking(automaton, /*bytes=*/false).take();
  const auto first = find_first_calls(automaton, rule_count, nullable);
  // Takes away, again and again, rules that no other begins with; what stays goes round.
  std::vector<size_t> callers(rule_count, 0);
  for (const auto& calls : first) {
    for (const RuleId called : calls) ++callers[called];
  }
  std::vector<RuleId> open;
  for (RuleId rule = 0; rule < rule_count; ++rule) {
    if (callers[rule] == 0) open.push_back(rule);
  }
  size_t taken = 0;
  while (!open.empty()) {
    const RuleId rule = open.back();
    open.pop_back();
    ++taken;
    for (const RuleId called : first[rule]) {
      if (--callers[called] == 0) open.push_back(called);
    }
  }
  if (taken == rule_count) return std::nullopt;
  // Whatever is left over is called by another that is: going back ends in a round.
  std::vector<RuleId> caller(rule_count, UINT32_MAX);
  RuleId in_round = 0;
  for (RuleId rule = 0; rule < rule_count; ++rule) {
    if (callers[rule] == 0) continue;
    in_round = rule;
    for (const RuleId called : first[rule]) caller[called] = rule;
  }
  for (size_t step = 0; step < rule_count; ++step) in_round = caller[in_round];
  return in_round;
}

}  // namespace lockstep
