// Finds the tokens that may follow, and remembers what was found.
//
// What a token's bytes do in a state depends on the state alone until the call that it is within
// returns. So for every state the tokens that need nothing more are found once, together with the
// places in the trie at which the rule may end: what may follow there depends on where the call
// returns to, and is found once per such state, and so on down the stack.
//
// Where memory is refused std::bad_alloc is thrown, and what is remembered stays right.
#pragma once

#include <chrono>
#include <deque>
#include <unordered_map>
#include <vector>

#include "engine/text/grammar/stacks.h"
#include "engine/text/grammar/token_mask.h"

namespace lockstep {

class MaskMemory {
 public:
  static constexpr size_t kBytesMax = size_t{8} << 20U;  // beyond which all is forgotten
  // The unit of work is looking at a node of the trie, a few nanoseconds. A mask is charged for
  // all that leads to it, remembered or not, once: so it depends on the grammar and the text alone
  // whether a mask is too much, not on what others have asked for.
  static constexpr size_t kWorkMax = size_t{4} << 20U;  // for one mask: about ten milliseconds
  static constexpr size_t kWorkPerVisit = 32;           // of a state, in a move
  static constexpr size_t kWorkPerConfiguration = 64;   // that is reached,
  static constexpr size_t kWorkPerHead = 16;            // for each of its heads,
  static constexpr size_t kWorkPerClass = 8;            // and for what follows it
  static constexpr size_t kWorkPerEntry = 64;
  static constexpr size_t kWorkPerStep = 32;  // of pause_point()

  // Both must outlive this.
  MaskMemory(const Automaton& automaton, const TokenTrie& trie);

  // Allows what may follow. False where that takes more than kWorkMax, or a move more than the
  // limits of Steps.
  bool allow(const Configuration& at, const Stacks& stacks, TokenMask& mask);

  // Finds what most tokens may follow ahead of its need, until the time is over.
  void prepare(std::chrono::steady_clock::time_point until);

  // Gives back what can be found again.
  void forget();

  size_t size_bytes() const;
  // States that were looked at since this was made: what masks have really cost.
  size_t visits() const { return visits_; }
  // The work that the last mask was charged.
  size_t work() const { return kWorkMax - work_left_; }

 private:
  using ConfigurationId = uint32_t;
  static constexpr ConfigurationId kDead = 0;
  static constexpr ConfigurationId kUnknown = UINT32_MAX;

  // The tokens that follow a state, or the end of a rule within an entry.
  struct Entry {
    std::vector<PlaceRange> ranges;             // that are allowed;
    std::vector<uint64_t> words;                // or this, where it is smaller
    std::vector<uint32_t> exits;                // nodes of the trie at which the rule ends
    std::unordered_map<StateId, Entry*> below;  // by the state that is returned to
    size_t work = 0;                            // to find it
    uint64_t used = 0;                          // by this mask last
  };
  struct Known {
    Configuration configuration;
    uint64_t charged = 0;  // in this walk last
    uint16_t plain_run = 0;
    ByteKinds loops = 0;  // as AutomatonState's, of one head

    // Every text below the node can follow: it need not be looked at. Nor need the ends of the rule
    // there, since whatever follows them is below the node as well.
    bool goes_on_through(const TokenTrie::Node& node) const {
      return plain_run >= node.plain_height || (node.below & ~loops) == 0;
    }
  };
  struct Move {
    ConfigurationId to = kUnknown;
    uint32_t work = 0;
    uint64_t charged = 0;  // in this walk last
  };
  struct ConfigurationHash {
    size_t operator()(const Configuration& configuration) const;
  };

  // Null where that is too much.
  Entry* find(StateId state);
  Entry* find_below(Entry& entry, StateId returned_to);
  bool use(Entry& entry, TokenMask& mask);
  void begin_mask();
  void begin_walk();
  bool walk(ConfigurationId from, uint32_t node, Entry& entry);
  void add_range(uint32_t begin, uint32_t end, Entry& entry) const;
  Entry* keep(Entry& entry);
  ConfigurationId number(Configuration&& configuration);
  // kUnknown beyond the limits.
  ConfigurationId next(ConfigurationId from, uint8_t byte);
  bool charge(ConfigurationId id);
  void forget_configurations();
  bool spend(size_t work);  // false if that is too much
  bool look();              // false if the time is over

  const Automaton& automaton_;
  const TokenTrie& trie_;
  Steps steps_;
  std::deque<Entry> entries_;
  std::unordered_map<StateId, Entry*> first_;  // by the head's state
  size_t entry_bytes_ = 0;
  // Configurations over a stack whose bottom stands for whatever the state was within.
  Stacks stacks_;
  std::unordered_map<Configuration, ConfigurationId, ConfigurationHash> numbers_;
  std::vector<Known> known_;  // by number
  std::vector<Move> moves_;   // by number and class of the byte
  size_t configuration_bytes_ = 0;
  std::vector<ConfigurationId> path_;  // by depth in the trie; reused
  uint64_t mask_ = 0;                  // the number of this one
  uint64_t walk_ = 0;                  // the same of walks
  size_t work_left_ = kWorkMax;
  size_t visits_ = 0;
  size_t look_below_ = 0;  // of work_left_: when to look at the clock next
  std::chrono::steady_clock::time_point until_;
};

}  // namespace lockstep
