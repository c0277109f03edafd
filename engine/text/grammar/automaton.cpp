#include "engine/text/grammar/automaton.h"

#include <algorithm>
#include <bitset>

namespace lockstep {

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
