#include "engine/text/grammar/mask_memory.h"

#include <algorithm>
#include <chrono>

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
  return entry_bytes_ + configuration_bytes_ + stacks_.size() * kStackBytes;
}

void MaskMemory::forget_configurations() {
  stacks_.clear();
  numbers_.clear();
  known_.assign(1, Known{});
  next_.assign(automaton_.class_count(), kDead);
  numbers_.emplace(Configuration{}, kDead);
  configuration_bytes_ = 0;
}

// Entries refer to no configuration, so that these can be forgotten alone.
void MaskMemory::make_room() {
  if (size_bytes() > kBytesMax / 2 || known_.size() > kConfigurationsMax / 2) {
    forget_configurations();
  }
  if (size_bytes() > kBytesMax) {
    first_.clear();
    entries_.clear();
    entry_bytes_ = 0;
  }
  visits_left_ = kVisitsMax;
}

bool MaskMemory::spend(size_t visits) {
  const bool enough = visits_left_ >= visits;
  visits_left_ -= enough ? visits : visits_left_;
  return enough;
}

bool MaskMemory::allow(const Configuration& at, const Stacks& stacks, TokenMask& mask) {
  make_room();
  const auto use = [&](const Entry* entry) {
    if (entry == nullptr || !spend(kVisitsPerEntry)) return false;
    for (const PlaceRange& range : entry->ranges) mask.allow(range);
    if (!entry->words.empty()) mask.allow(entry->words);
    return true;
  };
  for (const Head& head : at.heads) {
    Entry* entry = find(head.state);
    if (!use(entry)) return false;
    for (StackId stack = head.stack; stack != Stacks::kBottom && !entry->exits.empty();
         stack = stacks[stack].parent) {
      entry = find_below(*entry, stacks[stack].state);
      if (!use(entry)) return false;
    }
  }
  return true;
}

void MaskMemory::prepare(std::chrono::steady_clock::time_point until) {
  constexpr int kManyBytes = 64;
  for (StateId id = 0; id < automaton_.state_count(); ++id) {
    int bytes = 0;
    for (const ByteEdge& edge : automaton_.edges(id)) bytes += edge.high - edge.low + 1;
    if (bytes < kManyBytes) continue;
    if (std::chrono::steady_clock::now() > until || size_bytes() > kBytesMax / 2) return;
    make_room();
    find(id);
  }
}

MaskMemory::Entry* MaskMemory::find(StateId state) {
  if (const auto found = first_.find(state); found != first_.end()) return found->second;
  const ConfigurationId from = number({.heads = {{state, Stacks::kBottom}}, .ended = false});
  Entry entry;
  if (from == kUnknown || !walk(from, 0, entry)) return nullptr;
  keep(entry);
  return first_[state] = &entries_.back();
}

MaskMemory::Entry* MaskMemory::find_below(Entry& entry, StateId returned_to) {
  if (const auto found = entry.below.find(returned_to); found != entry.below.end()) {
    return found->second;
  }
  Configuration start;
  if (!steps_.enter(returned_to, Stacks::kBottom, stacks_, start)) return nullptr;
  const bool ended = start.ended;
  const ConfigurationId from = number(std::move(start));
  Entry below;
  if (from == kUnknown) return nullptr;
  for (const uint32_t node : entry.exits) {
    if (ended) below.exits.push_back(node);
    if (!walk(from, node, below)) return nullptr;
  }
  // Exits are looked at in order; the same may be found from two of them.
  std::ranges::sort(below.exits);
  below.exits.erase(std::ranges::unique(below.exits).begin(), below.exits.end());
  keep(below);
  return entry.below[returned_to] = &entries_.back();
}

// Takes the finished entry over, in the form that needs less.
void MaskMemory::keep(Entry& entry) {
  TokenMask words(trie_);
  if (entry.ranges.size() * sizeof(PlaceRange) > words.words().size_bytes()) {
    for (const PlaceRange& range : entry.ranges) words.allow(range);
    entry.words.assign(words.words().begin(), words.words().end());
    entry.ranges.clear();
  }
  entry.ranges.shrink_to_fit();
  entry.exits.shrink_to_fit();
  entry_bytes_ += sizeof(Entry) + entry.ranges.size() * sizeof(PlaceRange) +
                  entry.words.size() * sizeof(uint64_t) + entry.exits.size() * sizeof(uint32_t) +
                  64;  // of the maps that lead to it
  entries_.push_back(std::move(entry));
}

void MaskMemory::add_range(uint32_t begin, uint32_t end, Entry& entry) const {
  if (begin >= end) return;
  if (!entry.ranges.empty() && entry.ranges.back().end == begin) {
    entry.ranges.back().end = end;
  } else {
    entry.ranges.push_back({begin, end});
  }
}

// What lies below a node that the configuration has come to.
bool MaskMemory::walk(ConfigurationId from, uint32_t node, Entry& entry) {
  const auto& nodes = trie_.nodes();
  path_[nodes[node].depth] = from;
  if (known_[from].plain_run >= nodes[node].plain_height) {
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
    if (known.plain_run >= at.plain_height) {
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
  if (known_.size() > kConfigurationsMax) return kUnknown;
  const auto id = static_cast<ConfigurationId>(known_.size());
  Known known{.configuration = configuration};
  for (const Head& head : configuration.heads) {
    known.plain_run = std::max(known.plain_run, automaton_.state(head.state).plain_run);
  }
  configuration_bytes_ += 2 * (sizeof(Known) + configuration.heads.size() * sizeof(Head)) +
                          automaton_.class_count() * sizeof(ConfigurationId);
  known_.push_back(std::move(known));
  next_.resize(next_.size() + automaton_.class_count(), kUnknown);
  numbers_.emplace(std::move(configuration), id);
  return id;
}

MaskMemory::ConfigurationId MaskMemory::next(ConfigurationId from, uint8_t byte) {
  const size_t cell = from * automaton_.class_count() + automaton_.byte_class(byte);
  if (next_[cell] != kUnknown) return next_[cell];
  Configuration reached;
  const Configuration& configuration = known_[from].configuration;
  if (!steps_.step(configuration, byte, stacks_, reached)) return kUnknown;
  if (!spend(kVisitsPerHead * (configuration.heads.size() + reached.heads.size()))) return kUnknown;
  const ConfigurationId id = number(std::move(reached));
  if (id != kUnknown) next_[cell] = id;
  return id;
}

}  // namespace lockstep
