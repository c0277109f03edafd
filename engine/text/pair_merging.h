// Byte-pair encoding's inner loop: the neighbouring pair with the lowest priority merges, of equal
// ones the leftmost, until none can. n log n in the number of symbols, with at most 3 n look-ups.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/pause_point.h"

namespace lockstep {

inline constexpr uint32_t kNoSymbol = UINT32_MAX;

// A slice of the text that is one unit so far. Merged into its left neighbour it has size 0.
struct MergeSymbol {
  uint32_t begin = 0;
  uint32_t size_bytes = 0;
  uint32_t previous = kNoSymbol;
  uint32_t next = kNoSymbol;
  int32_t token = -1;
};

// The symbols of one text, in its order. The memory is reused from text to text.
class PairMerging {
 public:
  struct Candidate {
    uint32_t priority = 0;
    int32_t token = -1;
  };

  void clear() {
    symbols_.clear();
    queue_.clear();
  }

  void append(uint32_t begin, uint32_t size_bytes, int32_t token) {
    const auto index = static_cast<uint32_t>(symbols_.size());
    if (index % kAppendsPerPause == kAppendsPerPause - 1) pause_point();
    if (index > 0) symbols_[index - 1].next = index;
    symbols_.push_back({begin, size_bytes, index > 0 ? index - 1 : kNoSymbol, kNoSymbol, token});
  }

  // `find`: (const MergeSymbol& left, const MergeSymbol& right) -> std::optional<Candidate>.
  template <typename Find>
  void run(const Find& find) {
    for (uint32_t index = 0; index + 1 < symbols_.size(); ++index) {
      if (index % kOffersPerPause == kOffersPerPause - 1) pause_point();
      offer(index, find);
    }
    for (uint32_t count = 1; !queue_.empty(); ++count) {
      if (count % kOffersPerPause == 0) pause_point();
      std::pop_heap(queue_.begin(), queue_.end(), later);
      const Pair pair = queue_.back();
      queue_.pop_back();
      if (is_current(pair)) merge(pair, find);
    }
  }

  // The symbols left after run(), in order: skip those of size 0.
  const std::vector<MergeSymbol>& symbols() const { return symbols_; }

 private:
  // Either takes some microseconds.
  static constexpr uint32_t kAppendsPerPause = 1024;
  static constexpr uint32_t kOffersPerPause = 64;

  struct Pair {
    uint64_t key = 0;         // priority, then position of the left symbol
    uint32_t size_bytes = 0;  // of both when offered: symbols only grow, so this tells old pairs
    int32_t token = -1;
  };
  static bool later(const Pair& a, const Pair& b) { return a.key > b.key; }
  static uint32_t left_of(const Pair& pair) { return static_cast<uint32_t>(pair.key); }

  bool is_current(const Pair& pair) const {
    const MergeSymbol& left = symbols_[left_of(pair)];
    return left.size_bytes > 0 && left.next != kNoSymbol &&
           left.size_bytes + symbols_[left.next].size_bytes == pair.size_bytes;
  }

  template <typename Find>
  void offer(uint32_t index, const Find& find) {
    const MergeSymbol& left = symbols_[index];
    const MergeSymbol& right = symbols_[left.next];
    const std::optional<Candidate> candidate = find(left, right);
    if (!candidate) return;
    queue_.push_back({(static_cast<uint64_t>(candidate->priority) << 32U) | index,
                      left.size_bytes + right.size_bytes, candidate->token});
    std::push_heap(queue_.begin(), queue_.end(), later);
  }

  template <typename Find>
  void merge(const Pair& pair, const Find& find) {
    const uint32_t index = left_of(pair);
    MergeSymbol& left = symbols_[index];
    MergeSymbol& right = symbols_[left.next];
    left.size_bytes += right.size_bytes;
    left.token = pair.token;
    left.next = right.next;
    right.size_bytes = 0;
    if (left.next != kNoSymbol) symbols_[left.next].previous = index;
    if (left.previous != kNoSymbol) offer(left.previous, find);
    if (left.next != kNoSymbol) offer(index, find);
  }

  std::vector<MergeSymbol> symbols_;
  std::vector<Pair> queue_;  // a heap by `later`
};

}  // namespace lockstep
