#include "engine/text/grammar/automaton.h"

#include <algorithm>
#include <bitset>

#include "engine/text/grammar/automaton_checks.h"
#include "engine/text/grammar/subsets.h"

namespace lockstep {

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

Result<Automaton> Automaton::make(GrammarDraft& draft) {
  if (draft.failed()) return invalid_input("{}", draft.error());
  return AutomatonBuilder(draft).build();
}

StateId Automaton::next(StateId state, uint8_t byte) const {
  const auto found = edges(state);
  const auto edge = std::ranges::lower_bound(found, byte, {}, &ByteEdge::high);
  return edge != found.end() && edge->low <= byte ? edge->target : kNoState;
}

void Automaton::find_classes() {
  std::bitset<257> borders;  // where a class begins
  for (const ByteEdge& edge : edges_) {
    borders.set(edge.low);
    borders.set(edge.high + 1U);
  }
  size_t current = 0;
  for (size_t byte = 0; byte < classes_.size(); ++byte) {
    if (byte > 0 && borders[byte]) ++current;
    classes_[byte] = static_cast<uint8_t>(current);
  }
  class_count_ = current + 1;
}

void Automaton::shrink_to_fit() {
  states_.shrink_to_fit();
  edges_.shrink_to_fit();
  calls_.shrink_to_fit();
  starts_.shrink_to_fit();
}

size_t Automaton::size_bytes() const {
  return states_.size() * sizeof(AutomatonState) + edges_.size() * sizeof(ByteEdge) +
         calls_.size() * sizeof(CallEdge) + starts_.size() * sizeof(StateId);
}

}  // namespace lockstep
