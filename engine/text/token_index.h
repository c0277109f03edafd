// Indices of a vocabulary. Hash tables: text to token, and pair of tokens to what they merge into.
// Keys come from files, so the hash has a seed of its own per table: no file can be made to
// collide. And a tree of texts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
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

// Texts as a tree, whose nodes are where they part: finds all of them that a text begins with in
// one walk. At most two nodes for each text, whatever its length.
class PrefixIndex {
 public:
  PrefixIndex() = default;
  // Texts, which are borrowed and must outlive the index, and their tokens; empty texts are
  // ignored, of equal texts the lowest token counts.
  explicit PrefixIndex(std::vector<std::pair<std::string_view, int32_t>> tokens);

  // The index's own memory, without the texts.
  size_t size_bytes() const { return nodes_.size() * sizeof(Node) + bytes_.size(); }

  // Calls found(size_bytes, token) for each of the texts that `text` begins with, the shortest
  // first.
  template <typename Found>
  void for_each_prefix(std::string_view text, const Found& found) const {
    uint32_t index = 0;
    for (size_t size = 0; size < text.size();) {
      index = child(index, static_cast<uint8_t>(text[size]));
      if (index == 0) return;
      const Node& node = nodes_[index];
      ++size;
      if (!text.substr(size).starts_with(node.rest)) return;
      size += node.rest.size();
      if (node.token >= 0) found(size, node.token);
    }
  }

 private:
  // Children stand together, ascending by the byte that leads to them.
  struct Node {
    std::string_view rest;  // behind that byte, of what leads to it
    uint32_t first_child = 0;
    uint32_t child_count = 0;
    int32_t token = -1;
  };

  // 0: there is none.
  uint32_t child(uint32_t node, uint8_t byte) const {
    const auto begin = bytes_.begin() + nodes_[node].first_child;
    const auto end = begin + nodes_[node].child_count;
    const auto found = std::lower_bound(begin, end, byte);
    return found == end || *found != byte ? 0 : static_cast<uint32_t>(found - bytes_.begin());
  }

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(1);  // by node: the byte that leads there
};

}  // namespace lockstep
