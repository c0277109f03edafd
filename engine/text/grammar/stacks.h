// A text's place in a grammar: the states that may read its next byte, each with the calls
// that it is within.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/text/grammar/automaton.h"

namespace lockstep {

using StackId = uint32_t;

// The hash of two numbers in one; the standard library's hash is the number itself, whose order a
// client could choose.
struct PairHash {
  size_t operator()(uint64_t pair) const {
    pair = (pair ^ (pair >> 32U)) * 0x9E3779B97F4A7C15U;
    return (pair ^ (pair >> 29U)) * 0xBF58476D1CE4E5B9U >> 8U;
  }
};

// Stacks of states to return to, as a tree: equal stacks have one number. Number 0 is the bottom.
class Stacks {
 public:
  static constexpr StackId kBottom = 0;

  struct Node {
    StateId state = 0;  // to return to
    StackId parent = 0;
    uint32_t depth = 0;
  };

  Stacks() { clear(); }
  void clear();
  // Throws std::bad_alloc, and then nothing has changed.
  StackId push(StateId state, StackId parent);
  const Node& operator[](StackId id) const { return nodes_[id]; }
  size_t size() const { return nodes_.size(); }
  // Forgets what was pushed since there were so many. Takes no memory.
  void truncate(size_t size);

 private:
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, StackId, PairHash> numbers_;  // by state and parent
};

struct Head {
  StateId state = 0;  // has edges that read a byte
  StackId stack = 0;
  auto operator<=>(const Head&) const = default;
};

struct Configuration {
  std::vector<Head> heads;  // ascending, each once
  bool ended = false;       // the bottom has been returned to: the text may end here
  bool operator==(const Configuration&) const = default;
};

// Moves over an automaton. Ambiguous grammars give many heads, recursive ones deep stacks: beyond
// the limits a move fails. A move that throws std::bad_alloc leaves nothing to the next one.
// Belongs to one thread.
class Steps {
 public:
  static constexpr size_t kHeadsMax = 512;
  static constexpr uint32_t kDepthMax = 1024;
  static constexpr size_t kVisitsMax = 4096;  // of states in one move, the same again included

  // The automaton must outlive this.
  explicit Steps(const Automaton& automaton) : automaton_(automaton) {}

  // From a state on a stack, before any byte. False beyond the limits.
  bool enter(StateId state, StackId stack, Stacks& stacks, Configuration& to);
  bool step(const Configuration& from, uint8_t byte, Stacks& stacks, Configuration& to);

  // The cost of the last move, also if it failed: the states that it looked at.
  size_t visits() const { return visits_; }

 private:
  void begin();
  bool close(Stacks& stacks, Configuration& to);
  void visit(StateId state, StackId stack);

  const Automaton& automaton_;
  std::vector<Head> open_;  // reused
  std::vector<Head> seen_;  // reused; all that open_ has held
  std::unordered_map<uint64_t, bool, PairHash> seen_many_;
  size_t visits_ = 0;
};

}  // namespace lockstep
