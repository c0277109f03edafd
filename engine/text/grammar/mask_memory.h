// Finds the tokens that may follow, and remembers what was found.
//
// What a token's bytes do in a state depends on the state alone until the call that it is within
// returns. So for every state the tokens that need nothing more are found once, together with the
// places in the trie at which the rule may end: what may follow there depends on where the call
// returns to, and is found once per such state, and so on down the stack.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "engine/text/grammar/stacks.h"
#include "engine/text/grammar/token_mask.h"

namespace lockstep {

class MaskMemory {
 public:
  static constexpr size_t kBytesMax = size_t{8} << 20U;   // beyond which all is forgotten
  static constexpr size_t kVisitsMax = size_t{2} << 20U;  // of the trie's nodes for one mask;
  static constexpr size_t kVisitsPerHead = 16;            // a move of one head is as long as these
  static constexpr size_t kVisitsPerEntry = 64;           // and using what is remembered as these
  static constexpr size_t kConfigurationsMax = 16384;     // met on the way for one mask

  // Both must outlive this.
  MaskMemory(const Automaton& automaton, const TokenTrie& trie);

  // Allows what may follow. False where that would take more than the limits above.
  bool allow(const Configuration& at, const Stacks& stacks, TokenMask& mask);

  // Finds what most tokens may follow ahead of its need, until the time is over.
  void prepare(std::chrono::steady_clock::time_point until);

  size_t size_bytes() const;

 private:
  using ConfigurationId = uint32_t;
  static constexpr ConfigurationId kDead = 0;
  static constexpr ConfigurationId kUnknown = UINT32_MAX;

  // What follows a state, or the end of a rule within an entry.
  struct Entry {
    std::vector<PlaceRange> ranges;             // that are allowed;
    std::vector<uint64_t> words;                // or this, where it is smaller
    std::vector<uint32_t> exits;                // nodes of the trie at which the rule ends
    std::unordered_map<StateId, Entry*> below;  // by the state that is returned to
  };
  struct Known {
    Configuration configuration;
    uint16_t plain_run = 0;
  };
  struct ConfigurationHash {
    size_t operator()(const Configuration& configuration) const;
  };

  Entry* find(StateId state);
  Entry* find_below(Entry& entry, StateId returned_to);
  bool walk(ConfigurationId from, uint32_t node, Entry& entry);
  void add_range(uint32_t begin, uint32_t end, Entry& entry) const;
  void keep(Entry& entry);
  // kUnknown beyond the limits.
  ConfigurationId number(Configuration&& configuration);
  ConfigurationId next(ConfigurationId from, uint8_t byte);
  void make_room();
  void forget_configurations();
  bool spend(size_t visits);  // false if that is too much

  const Automaton& automaton_;
  const TokenTrie& trie_;
  Steps steps_;
  std::deque<Entry> entries_;
  std::unordered_map<StateId, Entry*> first_;  // by the head's state
  size_t entry_bytes_ = 0;
  // Configurations over a stack whose bottom stands for whatever the state was within.
  Stacks stacks_;
  std::unordered_map<Configuration, ConfigurationId, ConfigurationHash> numbers_;
  std::vector<Known> known_;           // by number
  std::vector<ConfigurationId> next_;  // by number and class of the byte
  size_t configuration_bytes_ = 0;
  std::vector<ConfigurationId> path_;  // by depth in the trie; reused
  size_t visits_left_ = 0;
};

}  // namespace lockstep
