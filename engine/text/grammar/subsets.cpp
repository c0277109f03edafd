#include "engine/text/grammar/subsets.h"

#include <algorithm>
#include <utility>

namespace lockstep {

size_t Subsets::SetHash::operator()(const Set& set) const {
  uint64_t hash = set.size();
  for (const uint32_t state : set) hash = (hash ^ state) * 0x9E3779B97F4A7C15U;
  return hash ^ (hash >> 32U);
}

Subsets::Subsets(GrammarDraft& draft, const Nondeterministic& source)
    : draft_(draft), source_(source), marks_(source.state_count(), 0) {
  draft_.budget().take(marks_.size() * sizeof(uint32_t));
  find_or_add({Nondeterministic::kStart});
}

// Keeps only states that something but nothing leaves, and the end: the others tell no sets apart.
void Subsets::close(Set& set) {
  ++closing_;
  Set open = std::move(set);
  set.clear();
  std::erase_if(open, [&](uint32_t state) {
    return std::exchange(marks_[state], closing_) == closing_;  // there already
  });
  while (!open.empty()) {
    const uint32_t state = open.back();
    open.pop_back();
    bool reads = state == Nondeterministic::kEnd;
    for (int32_t at = source_.first_edge(state); at >= 0; at = source_.edge(at).next) {
      const NondeterministicEdge& edge = source_.edge(at);
      if (edge.kind != NondeterministicEdge::Kind::kNothing) {
        reads = true;
      } else if (marks_[edge.target] != closing_) {
        marks_[edge.target] = closing_;
        open.push_back(edge.target);
      }
    }
    if (reads) set.push_back(state);
    if (!note_scratch(open.size() + set.size())) break;
  }
  std::ranges::sort(set);
}

bool Subsets::note_scratch(size_t items) {
  const size_t more = items > scratch_items_ ? items - scratch_items_ : 0;
  scratch_items_ += more;
  return draft_.budget().take(more * (sizeof(ByteEdge) + sizeof(CallEdge) + sizeof(uint32_t)));
}

StateId Subsets::find_or_add(Set&& set) {
  close(set);
  const size_t size = set.size();
  const auto [found, added] =
      numbers_.try_emplace(std::move(set), static_cast<StateId>(sets_.size()));
  if (added) {
    sets_.push_back(&found->first);
    draft_.budget().take(sizeof(std::pair<Set, StateId>) + size * sizeof(uint32_t));
  }
  return found->second;
}

const SubsetEdges& Subsets::expand(size_t index) {
  found_ = {};
  byte_edges_.clear();
  call_edges_.clear();
  for (const uint32_t state : *sets_[index]) {
    if (state == Nondeterministic::kEnd) found_.final = true;
    for (int32_t at = source_.first_edge(state); at >= 0; at = source_.edge(at).next) {
      const NondeterministicEdge& edge = source_.edge(at);
      if (edge.kind == NondeterministicEdge::Kind::kBytes) {
        byte_edges_.push_back({edge.low, edge.high, edge.target});
      } else if (edge.kind == NondeterministicEdge::Kind::kRule) {
        call_edges_.push_back({edge.rule, edge.target});
      }
      if (!note_scratch(byte_edges_.size() + call_edges_.size())) return found_;
    }
  }
  std::ranges::sort(call_edges_, {}, &CallEdge::rule);
  for (size_t begin = 0, end = 0; begin < call_edges_.size(); begin = end) {
    Set targets;
    const RuleId rule = call_edges_[begin].rule;
    for (; end < call_edges_.size() && call_edges_[end].rule == rule; ++end) {
      targets.push_back(call_edges_[end].target);
    }
    found_.calls.push_back({rule, find_or_add(std::move(targets))});
    if (draft_.failed()) return found_;
  }
  find_byte_edges();
  return found_;
}

// Cuts the byte ranges where one of them begins or ends; each piece leads to all targets of the
// ranges that hold it.
void Subsets::find_byte_edges() {
  if (byte_edges_.empty()) return;
  std::vector<unsigned> borders;
  for (const ByteEdge& edge : byte_edges_) {
    borders.push_back(edge.low);
    borders.push_back(edge.high + 1U);
  }
  std::ranges::sort(borders);
  borders.erase(std::ranges::unique(borders).begin(), borders.end());
  std::ranges::sort(byte_edges_, {}, &ByteEdge::low);
  std::vector<ByteEdge> open;
  size_t next = 0;
  for (size_t piece = 0; piece + 1 < borders.size(); ++piece) {
    const unsigned low = borders[piece];
    std::erase_if(open, [&](const ByteEdge& edge) { return edge.high < low; });
    for (; next < byte_edges_.size() && byte_edges_[next].low <= low; ++next) {
      open.push_back(byte_edges_[next]);
    }
    if (open.empty()) continue;
    Set targets;
    for (const ByteEdge& edge : open) targets.push_back(edge.target);
    if (!note_scratch(targets.size())) return;
    const StateId target = find_or_add(std::move(targets));
    const auto high = static_cast<uint8_t>(borders[piece + 1] - 1);
    const bool joins = !found_.bytes.empty() && found_.bytes.back().target == target &&
                       found_.bytes.back().high + 1U == low;
    if (joins) {
      found_.bytes.back().high = high;
    } else {
      found_.bytes.push_back({static_cast<uint8_t>(low), high, target});
    }
  }
}

}  // namespace lockstep
