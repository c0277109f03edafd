// A compiled grammar: one deterministic automaton per rule, whose edges read a byte or call a rule.
// A state that calls is left through the call alone or through its bytes; what has been called
// returns to the state that the call names. Together they recognize what the grammar's rules
// derive.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/text/grammar/character_set.h"
#include "engine/text/grammar/draft.h"

namespace lockstep {

using StateId = uint32_t;

struct ByteEdge {
  uint8_t low = 0;
  uint8_t high = 0;
  StateId target = 0;
};

struct CallEdge {
  RuleId rule = 0;
  StateId target = 0;  // where the call returns to
};

struct AutomatonState {
  uint32_t edge_begin = 0;  // ascending and disjoint
  uint32_t edge_count = 0;
  uint32_t call_begin = 0;
  uint32_t call_count = 0;
  // The number of plain characters (token_trie.h), whichever they are, that can follow within this
  // rule.
  uint16_t plain_run = 0;
  bool final = false;   // the rule may end here
  ByteKinds loops = 0;  // all of whose bytes lead back here
};

class Automaton {
 public:
  static constexpr uint16_t kPlainRunMax = 0xFFFE;  // also: no limit
  static constexpr StateId kNoState = UINT32_MAX;

  const AutomatonState& state(StateId id) const { return states_[id]; }
  size_t state_count() const { return states_.size(); }
  std::span<const ByteEdge> edges(StateId id) const {
    return std::span(edges_).subspan(states_[id].edge_begin, states_[id].edge_count);
  }
  std::span<const CallEdge> calls(StateId id) const {
    return std::span(calls_).subspan(states_[id].call_begin, states_[id].call_count);
  }
  StateId start(RuleId rule) const { return starts_[rule]; }
  StateId root() const { return root_; }
  // The target of the state's edge for this byte; kNoState if it has none.
  StateId next(StateId state, uint8_t byte) const;
  // Nothing but the rule's end can come after this state.
  bool only_ends(StateId id) const {
    return states_[id].final && states_[id].edge_count == 0 && states_[id].call_count == 0;
  }

  // Bytes that no edge tells apart have one class.
  uint8_t byte_class(uint8_t byte) const { return classes_[byte]; }
  size_t class_count() const { return class_count_; }
  size_t size_bytes() const;

 private:
  friend class AutomatonBuilder;
  void find_classes();
  void shrink_to_fit();

  std::vector<AutomatonState> states_;
  std::vector<ByteEdge> edges_;
  std::vector<CallEdge> calls_;
  std::vector<StateId> starts_;  // by rule
  StateId root_ = 0;
  std::array<uint8_t, 256> classes_{};
  size_t class_count_ = 0;
};

// The automaton of a draft. Fails with kInvalidInput for a grammar that is left-recursive, matches
// nothing, names a rule without a body, or is too much for the draft's budget.
Result<Automaton> build_automaton(GrammarDraft& draft);

}  // namespace lockstep
