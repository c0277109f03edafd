// Hash tables of a vocabulary: text to token, and pair of tokens to what they merge into. Keys come
// from files, so the hash has a seed of its own per table: no file can be made to collide.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep {

// Text to token. The texts are borrowed and must outlive the table.
class TokenIndex {
 public:
  // The capacity is `count` texts.
  explicit TokenIndex(size_t count = 0);

  // Keeps the token that came first when a text comes twice.
  void insert(std::string_view text, int32_t token);
  // -1 if there is none.
  int32_t find(std::string_view text) const;
  // Length of the longest text, so that a caller need not look for a longer one.
  size_t text_bytes_max() const { return text_bytes_max_; }

 private:
  struct Slot {
    std::string_view text;
    uint32_t hash = 0;
    int32_t token = -1;
  };
  size_t find_slot(std::string_view text, uint32_t hash) const;

  uint64_t seed_;
  size_t mask_;
  size_t text_bytes_max_ = 0;
  std::vector<Slot> slots_;
};

// Two tokens to the token that they merge into and the merge's rank (lower merges first).
class MergeIndex {
 public:
  struct Merge {
    uint32_t rank = 0;
    int32_t token = -1;  // -1: no such merge
  };

  explicit MergeIndex(size_t count = 0);

  // Keeps the merge that came first when a pair comes twice.
  void insert(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = 0;
    Merge merge;
  };
  size_t find_slot(uint64_t key) const;

  uint64_t seed_;
  size_t mask_;
  std::vector<Slot> slots_;
};

}  // namespace lockstep
