#include <algorithm>
#include <bitset>
#include <optional>
#include <utility>
#include <vector>

#include "engine/text/grammar/automaton.h"
#include "engine/text/grammar/subsets.h"

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

// By state: whether the end of its rule can be reached from it.
std::vector<bool> find_productive(const Automaton& automaton) {
  return Marking(automaton, /*bytes=*/true).take();
}

// A rule that can call itself before any byte is read, if there is one. Expects that every edge
// leads to where the end can be reached.
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

}  // namespace

// Puts the rules' automata together, takes out what can never end, and checks the whole.
class AutomatonBuilder {
 public:
  explicit AutomatonBuilder(GrammarDraft& draft) : draft_(draft) {}

  Result<Automaton> build() {
    for (RuleId rule = 0; rule < draft_.rule_count() && !draft_.failed(); ++rule) add(rule);
    if (draft_.failed()) return fail();
    // The checks' memory, at most, per state, edge and call.
    draft_.budget().take(result_.states_.size() * 48 + result_.edges_.size() * 16 +
                         result_.calls_.size() * 64);
    if (draft_.failed()) return fail();
    productive_ = find_productive(result_);
    if (!productive_[result_.start(draft_.root())]) {
      draft_.fail("no text matches it");
      return fail();
    }
    keep_productive();
    result_.root_ = result_.start(draft_.root());
    const auto recursive = find_left_recursion(result_, draft_.rule_count());
    if (recursive) {
      draft_.fail("the rule \"{:.100}\" is left-recursive: it can begin with itself",
                  draft_.rule_name(*recursive));
      return fail();
    }
    find_plain_runs();
    for (StateId id = 0; id < result_.state_count(); ++id) result_.states_[id].loops = loops(id);
    result_.find_classes();
    result_.shrink_to_fit();
    if (draft_.failed()) return fail();
    return std::move(result_);
  }

 private:
  std::unexpected<Error> fail() const { return invalid_input("{}", draft_.error()); }

  void add(RuleId rule) {
    const auto body = draft_.body(rule);
    if (!body) {
      draft_.fail("the rule \"{:.100}\" is used but not defined", draft_.rule_name(rule));
      return;
    }
    const Nondeterministic source(draft_, *body);
    if (draft_.failed()) return;
    const auto base = static_cast<StateId>(result_.states_.size());
    result_.starts_.push_back(base);
    Subsets subsets(draft_, source);
    // States are found while those before them are looked at.
    for (size_t index = 0; index < subsets.size() && !draft_.failed(); ++index) {
      const SubsetEdges& found = subsets.expand(index);
      AutomatonState state{.edge_begin = static_cast<uint32_t>(result_.edges_.size()),
                           .edge_count = static_cast<uint32_t>(found.bytes.size()),
                           .call_begin = static_cast<uint32_t>(result_.calls_.size()),
                           .call_count = static_cast<uint32_t>(found.calls.size()),
                           .final = found.final};
      for (const ByteEdge& edge : found.bytes) {
        result_.edges_.push_back({edge.low, edge.high, base + edge.target});
      }
      for (const CallEdge& call : found.calls) {
        result_.calls_.push_back({call.rule, base + call.target});
      }
      result_.states_.push_back(state);
      draft_.budget().take(sizeof(AutomatonState) + found.bytes.size() * sizeof(ByteEdge) +
                           found.calls.size() * sizeof(CallEdge));
    }
  }

  void keep_productive() {
    std::vector<ByteEdge> edges;
    std::vector<CallEdge> calls;
    for (AutomatonState& state : result_.states_) {
      const auto begin = static_cast<uint32_t>(edges.size());
      const auto call_begin = static_cast<uint32_t>(calls.size());
      for (uint32_t index = 0; index < state.edge_count; ++index) {
        const ByteEdge& edge = result_.edges_[state.edge_begin + index];
        if (productive_[edge.target]) edges.push_back(edge);
      }
      for (uint32_t index = 0; index < state.call_count; ++index) {
        const CallEdge& call = result_.calls_[state.call_begin + index];
        if (productive_[call.target] && productive_[result_.starts_[call.rule]]) {
          calls.push_back(call);
        }
      }
      state.edge_begin = begin;
      state.edge_count = static_cast<uint32_t>(edges.size()) - begin;
      state.call_begin = call_begin;
      state.call_count = static_cast<uint32_t>(calls.size()) - call_begin;
    }
    result_.edges_ = std::move(edges);
    result_.calls_ = std::move(calls);
  }

  // The state to which every plain ASCII byte and every other plain character lead, if that is one.
  StateId after_plain(StateId id) const {
    const auto rule = draft_.plain_multibyte_rule();
    if (!rule) return Automaton::kNoState;
    StateId target = Automaton::kNoState;
    for (const CallEdge& call : result_.calls(id)) {
      if (call.rule == *rule) target = call.target;
    }
    if (target == Automaton::kNoState) return target;
    constexpr std::pair<uint8_t, uint8_t> kPlain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7E}};
    for (const auto& [low, high] : kPlain) {
      unsigned next = low;
      for (const ByteEdge& edge : result_.edges(id)) {
        if (edge.high < next || edge.low > next || edge.target != target) continue;
        next = edge.high + 1U;
      }
      if (next <= high) return Automaton::kNoState;
    }
    return target;
  }

  void find_plain_runs() {
    constexpr uint16_t kUnknown = 0xFFFF;
    std::vector<StateId> next(result_.state_count());
    std::vector<uint16_t> runs(result_.state_count(), kUnknown);
    for (StateId id = 0; id < next.size(); ++id) next[id] = after_plain(id);
    std::vector<StateId> path;
    for (StateId first = 0; first < next.size(); ++first) {
      path.clear();
      StateId id = first;
      while (id != Automaton::kNoState && runs[id] == kUnknown) {
        runs[id] = Automaton::kPlainRunMax;  // what a cycle finds
        path.push_back(id);
        id = next[id];
      }
      unsigned run = id == Automaton::kNoState ? 0 : runs[id] + 1U;
      // The last of a path that leads nowhere has none itself.
      if (id == Automaton::kNoState && !path.empty()) {
        runs[path.back()] = 0;
        path.pop_back();
        run = 1;
      }
      for (; !path.empty(); path.pop_back(), ++run) {
        runs[path.back()] = static_cast<uint16_t>(std::min<unsigned>(run, Automaton::kPlainRunMax));
      }
    }
    for (StateId id = 0; id < next.size(); ++id) result_.states_[id].plain_run = runs[id];
  }

  ByteKinds loops(StateId id) const {
    std::bitset<256> back;
    for (const ByteEdge& edge : result_.edges(id)) {
      if (edge.target != id) continue;
      for (unsigned byte = edge.low; byte <= edge.high; ++byte) back.set(byte);
    }
    if (back.none()) return 0;
    unsigned left = 0;  // kinds of which a byte leads elsewhere
    for (unsigned byte = 0; byte < back.size(); ++byte) {
      if (!back[byte]) left |= kind_of(static_cast<uint8_t>(byte));
    }
    return static_cast<ByteKinds>(~left);
  }

  GrammarDraft& draft_;
  Automaton result_;
  std::vector<bool> productive_;
};

Result<Automaton> build_automaton(GrammarDraft& draft) {
  if (draft.failed()) return invalid_input("{}", draft.error());
  return AutomatonBuilder(draft).build();
}

}  // namespace lockstep
