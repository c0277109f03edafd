// The subset construction: sets of states of a nondeterministic automaton as states of one that is
// deterministic, for bytes and for calls.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/text/grammar/automaton.h"
#include "engine/text/grammar/nondeterministic.h"

namespace lockstep {

// The edges that leave a set; targets are numbers of sets.
struct SubsetEdges {
  std::vector<ByteEdge> bytes;
  std::vector<CallEdge> calls;
  bool final = false;
};

class Subsets {
 public:
  // The references must outlive this. Set 0 is that of the start.
  Subsets(GrammarDraft& draft, const Nondeterministic& source);

  size_t size() const { return sets_.size(); }
  // Finds the set's edges, and the sets that they lead to; not all of them if the draft's budget is
  // spent. Valid until the next call.
  const SubsetEdges& expand(size_t index);

 private:
  using Set = std::vector<uint32_t>;  // ascending, closed under edges that read nothing
  struct SetHash {
    size_t operator()(const Set& set) const;
  };

  void close(Set& set);
  StateId find_or_add(Set&& set);
  void find_byte_edges();
  bool note_scratch(size_t items);  // false if that is too much

  GrammarDraft& draft_;
  const Nondeterministic& source_;
  std::unordered_map<Set, StateId, SetHash> numbers_;
  std::vector<const Set*> sets_;  // the keys of numbers_
  std::vector<uint32_t> marks_;   // by state: the last closing that reached it
  uint32_t closing_ = 0;
  std::vector<ByteEdge> byte_edges_;  // of the set's states; targets are states
  std::vector<CallEdge> call_edges_;
  SubsetEdges found_;
  size_t scratch_items_ = 0;  // the most that were noted: what is used again is counted once
};

}  // namespace lockstep
