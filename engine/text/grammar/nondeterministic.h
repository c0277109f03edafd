// Thompson's construction for one rule: states with edges that read nothing, a byte, or a rule.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/text/grammar/draft.h"

namespace lockstep {

struct NondeterministicEdge {
  enum class Kind : uint8_t { kNothing, kBytes, kRule };
  Kind kind = Kind::kNothing;
  uint8_t low = 0;
  uint8_t high = 0;
  RuleId rule = 0;
  uint32_t target = 0;
  int32_t next = -1;  // the next edge of the same state
};

class Nondeterministic {
 public:
  static constexpr uint32_t kStart = 0;
  static constexpr uint32_t kEnd = 1;

  // Incomplete if the draft's budget is spent by it.
  Nondeterministic(GrammarDraft& draft, ExpressionId body);

  size_t state_count() const { return heads_.size(); }
  // The state's first edge, -1 for none.
  int32_t first_edge(uint32_t state) const { return heads_[state]; }
  const NondeterministicEdge& edge(int32_t index) const {
    return edges_[static_cast<size_t>(index)];
  }

 private:
  uint32_t add_state();
  void connect(uint32_t from, NondeterministicEdge edge);
  void build(ExpressionId id, uint32_t from, uint32_t to);
  void build_repeat(const Expression& repeat, uint32_t from, uint32_t to);

  GrammarDraft& draft_;
  std::vector<int32_t> heads_;
  std::vector<NondeterministicEdge> edges_;
};

}  // namespace lockstep
