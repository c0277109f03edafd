#include "engine/text/grammar/mask_memory.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "engine/base/pause_point.h"

namespace lockstep {

MaskMemory::MaskMemory(const Automaton& automaton, const TokenTrie& trie)
    : automaton_(automaton), trie_(trie), steps_(automaton), path_(TokenTrie::kTokenBytesMax + 1) {
  forget_configurations();
}

size_t MaskMemory::ConfigurationHash::operator()(const Configuration& configuration) const {
  uint64_t hash = configuration.ended ? 1 : 2;
  for (const Head& head : configuration.heads) {
    hash = (hash ^ head.state) * 0x9E3779B97F4A7C15U;
    hash = (hash ^ (hash >> 29U) ^ head.stack) * 0xBF58476D1CE4E5B9U;
  }
  return hash ^ (hash >> 32U);
}

size_t MaskMemory::size_bytes() const {
  constexpr size_t kStackBytes = 64;  // a node, and what leads to it
  return entry_bytes_ + configuration_bytes_ + known_.capacity() * sizeof(Known) +
         moves_.capacity() * sizeof(Move) + stacks_.size() * kStackBytes;
}

void MaskMemory::forget_configurations() {
  Stacks stacks;
  std::vector<Known> known(1);
  std::vector<Move> moves(automaton_.class_count());
  decltype(numbers_) numbers;
  numbers.emplace(Configuration{}, kDead);
  // All or nothing: these refer to one another.
  std::swap(stacks_, stacks);
  std::swap(known_, known);
  std::swap(moves_, moves);
  std::swap(numbers_, numbers);
  configuration_bytes_ = 0;
}

void MaskMemory::forget() {
  forget_configurations();
  first_ = {};
  entries_.clear();
  entries_.shrink_to_fit();
  entry_bytes_ = 0;
}

void MaskMemory::begin_mask() {
  if (entry_bytes_ > kBytesMax) forget();
  ++mask_;
  work_left_ = kWorkMax;
  look_below_ = 0;
}

// Entries refer to no configuration, so that these can be forgotten alone.
void MaskMemory::begin_walk() {
  ++walk_;
  if (size_bytes() - entry_bytes_ > kBytesMax / 2) forget_configurations();
}

bool MaskMemory::spend(size_t work) {
  const bool enough = work_left_ >= work;
  work_left_ -= enough ? work : work_left_;
  return enough && (work_left_ >= look_below_ || look());
}

bool MaskMemory::look() {
  constexpr size_t kWorkPerLook = size_t{1} << 16U;
  look_below_ = work_left_ > kWorkPerLook ? work_left_ - kWorkPerLook : 0;
  pause_point();  // where a grammar is made: nobody else knows it yet
  return std::chrono::steady_clock::now() <= until_;
}

bool MaskMemory::use(Entry& entry, TokenMask& mask) {
  if (entry.used == mask_) return true;
  entry.used = mask_;
  if (!spend(kWorkPerEntry + entry.work)) return false;
  for (const PlaceRange& range : entry.ranges) mask.allow(range);
  if (!entry.words.empty()) mask.allow(entry.words);
  return true;
}

bool MaskMemory::allow(const Configuration& at, const Stacks& stacks, TokenMask& mask) {
  begin_mask();
  for (const Head& head : at.heads) {
    Entry* entry = find(head.state);
    if (entry == nullptr || !use(*entry, mask)) return false;
    for (StackId stack = head.stack; stack != Stacks::kBottom && !entry->exits.empty();
         stack = stacks[stack].parent) {
      entry = find_below(*entry, stacks[stack].state);
      if (entry == nullptr || !use(*entry, mask) || !spend(kWorkPerEntry)) return false;
    }
  }
  return true;
}

void MaskMemory::prepare(std::chrono::steady_clock::time_point until) {
  constexpr int kManyBytes = 16;
  for (StateId id = 0; id < automaton_.state_count(); ++id) {
    int bytes = 0;
    for (const ByteEdge& edge : automaton_.edges(id)) bytes += edge.high - edge.low + 1;
    if (bytes < kManyBytes) continue;
    begin_mask();
    until_ = until;
    if (!look() || size_bytes() > kBytesMax / 2) break;
    const Entry* entry = find(id);
    pause_point((entry != nullptr ? entry->work : work()) / kWorkPerStep);
  }
  begin_mask();
}

MaskMemory::Entry* MaskMemory::find(StateId state) {
  if (const auto found = first_.find(state); found != first_.end()) return found->second;
  begin_walk();
  const size_t work_left = work_left_;
  const ConfigurationId from = number({.heads = {{state, Stacks::kBottom}}, .ended = false});
  Entry entry;
  if (!charge(from) || !walk(from, 0, entry)) return nullptr;
  entry.work = work_left - work_left_;
  work_left_ = work_left;  // charged when it is used
  return first_[state] = keep(entry);
}

MaskMemory::Entry* MaskMemory::find_below(Entry& entry, StateId returned_to) {
  if (const auto found = entry.below.find(returned_to); found != entry.below.end()) {
    return found->second;
  }
  begin_walk();
  const size_t work_left = work_left_;
  Configuration start;
  const bool fits = steps_.enter(returned_to, Stacks::kBottom, stacks_, start);
  visits_ += steps_.visits();
  if (!fits || !spend(steps_.visits() * kWorkPerVisit)) return nullptr;
  const bool ended = start.ended;
  const ConfigurationId from = number(std::move(start));
  Entry below;
  if (!charge(from)) return nullptr;
  for (const uint32_t node : entry.exits) {
    if (ended) below.exits.push_back(node);
    if (!walk(from, node, below)) return nullptr;
  }
  // Exits are looked at in order; the same may be found from two of them.
  std::ranges::sort(below.exits);
  below.exits.erase(std::ranges::unique(below.exits).begin(), below.exits.end());
  below.work = work_left - work_left_;
  work_left_ = work_left;
  return entry.below[returned_to] = keep(below);
}

// Takes the finished entry over, in the form that needs less.
MaskMemory::Entry* MaskMemory::keep(Entry& entry) {
  TokenMask words(trie_);
  if (entry.ranges.size() * sizeof(PlaceRange) > words.words().size_bytes()) {
    for (const PlaceRange& range : entry.ranges) words.allow(range);
    entry.words.assign(words.words().begin(), words.words().end());
    entry.ranges.clear();
  }
  entry.ranges.shrink_to_fit();
  entry.exits.shrink_to_fit();
  entries_.push_back(std::move(entry));
  const Entry& kept = entries_.back();
  entry_bytes_ += sizeof(Entry) + kept.ranges.size() * sizeof(PlaceRange) +
                  kept.words.size() * sizeof(uint64_t) + kept.exits.size() * sizeof(uint32_t) +
                  64;  // of the maps that lead to it
  return &entries_.back();
}

void MaskMemory::add_range(uint32_t begin, uint32_t end, Entry& entry) const {
  if (begin >= end) return;
  if (!entry.ranges.empty() && entry.ranges.back().end == begin) {
    entry.ranges.back().end = end;
  } else {
    entry.ranges.push_back({begin, end});
  }
}

// Walks the tokens below a node that the configuration has reached.
bool MaskMemory::walk(ConfigurationId from, uint32_t node, Entry& entry) {
  const auto& nodes = trie_.nodes();
  if (!spend(1)) return false;
  path_[nodes[node].depth] = from;
  if (known_[from].goes_on_through(nodes[node])) {
    add_range(nodes[node].own_token_end, nodes[node].token_end, entry);
    return true;
  }
  const uint32_t end = nodes[node].end;
  for (uint32_t index = node + 1; index < end;) {
    if (!spend(1)) return false;
    const TokenTrie::Node& at = nodes[index];
    const ConfigurationId reached = next(path_[at.depth - 1U], at.byte);
    if (reached == kUnknown) return false;
    if (reached == kDead) {
      index = at.end;
      continue;
    }
    const Known& known = known_[reached];
    if (known.goes_on_through(at)) {
      add_range(at.token_begin, at.token_end, entry);
      index = at.end;
      continue;
    }
    add_range(at.token_begin, at.own_token_end, entry);
    if (known.configuration.ended && at.end > index + 1) entry.exits.push_back(index);
    path_[at.depth] = reached;
    index = known.configuration.heads.empty() ? at.end : index + 1;
  }
  return true;
}

MaskMemory::ConfigurationId MaskMemory::number(Configuration&& configuration) {
  if (const auto found = numbers_.find(configuration); found != numbers_.end()) {
    return found->second;
  }
  const auto id = static_cast<ConfigurationId>(known_.size());
  Known known{.configuration = configuration};
  for (const Head& head : configuration.heads) {
    const AutomatonState& state = automaton_.state(head.state);
    known.plain_run = std::max(known.plain_run, state.plain_run);
    if (std::popcount(state.loops) > std::popcount(known.loops)) known.loops = state.loops;
  }
  // Whichever of these throws leaves moves, or a number, that nothing leads to.
  moves_.resize((known_.size() + 1) * automaton_.class_count());
  known_.push_back(std::move(known));
  configuration_bytes_ += sizeof(Known) + 2 * configuration.heads.size() * sizeof(Head);
  numbers_.emplace(std::move(configuration), id);
  return id;
}

// Charges as if the walk had reached the configuration for the first time.
bool MaskMemory::charge(ConfigurationId id) {
  Known& known = known_[id];
  if (known.charged == walk_) return true;
  known.charged = walk_;
  return spend(kWorkPerConfiguration + known.configuration.heads.size() * kWorkPerHead +
               automaton_.class_count() * kWorkPerClass);
}

MaskMemory::ConfigurationId MaskMemory::next(ConfigurationId from, uint8_t byte) {
  const size_t cell = from * automaton_.class_count() + automaton_.byte_class(byte);
  Move move = moves_[cell];
  if (move.charged == walk_) return move.to;
  if (move.to == kUnknown) {
    Configuration reached;
    const bool fits = steps_.step(known_[from].configuration, byte, stacks_, reached);
    visits_ += steps_.visits();
    move.work = static_cast<uint32_t>(steps_.visits() * kWorkPerVisit);
    if (!fits || work_left_ < move.work) return kUnknown;
    move.to = number(std::move(reached));
  }
  move.charged = walk_;
  moves_[cell] = move;
  return spend(move.work) && charge(move.to) ? move.to : kUnknown;
}

}  // namespace lockstep
