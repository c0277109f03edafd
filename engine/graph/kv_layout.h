// The KV cache in pages of 64 tokens. Layers with the same window form groups; a page holds the
// keys and values of one group's layers, and every sequence has a page table per group. So the
// pages that lie behind a group's window can be given back while other layers keep theirs, and one
// pool of pages serves all groups. A graph whose layers all have the same window has one group, and
// its pages hold every layer.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/attention_window.h"
#include "engine/base/range.h"
#include "engine/graph/arenas.h"
#include "engine/graph/graph.h"
#include "engine/graph/split.h"
#include "engine/kernels/attention.h"

namespace lockstep {

struct KvGroup {
  AttentionWindow window;
  std::vector<size_t> layers;  // GraphNode::layer, ascending

  friend bool operator==(const KvGroup&, const KvGroup&) = default;
};

// The groups whose pages take the least memory for sequences of kKvGroupingTokens; of groupings
// that take nearly the same, the one with the fewest groups. A group's pages are as large as the
// largest group's, so layers of one window may be in several groups. One group of all layers where
// the graph keeps all keys.
inline constexpr size_t kKvGroupingTokens = 32768;
std::vector<KvGroup> group_kv_layers(const Graph& graph);

// The first group whose pages keep all of a sequence's tokens; none: there is no such group.
std::optional<size_t> whole_group(std::span<const AttentionWindow> windows);

// The number of pages that sequences take, of all groups together.
class KvPageCount {
 public:
  KvPageCount(const Graph& graph, size_t batch_tokens);

  // At most, while a sequence grows to so many tokens.
  size_t of_sequence(size_t tokens) const;
  // The longest sequence, in whole pages of tokens, that never takes more than so many; 0: none.
  size_t tokens_within(size_t pages) const;

 private:
  std::vector<AttentionWindow> windows_;  // by group
  size_t batch_tokens_ = 0;
};

// One layer's keys and values in a rank's part of the cache: for each of the rank's KV heads a
// block in each page, in it the keys' and then the values' (kernels/attention.h).
struct KvLayer {
  size_t group = 0;  // whose page tables lead to it
  size_t head_count = 0;
  size_t key_dimension = 0;
  size_t value_dimension = 0;
  bool has_values_in_keys = false;  // the first dimensions; they are not stored by themselves
  size_t offset = 0;                // of head 0's block in page 0, bytes
  size_t head_stride_bytes = 0;
  size_t page_stride_bytes = 0;

  size_t stored_value_dimension() const { return has_values_in_keys ? 0 : value_dimension; }
  friend bool operator==(const KvLayer&, const KvLayer&) = default;
};

// A rank's part of the KV cache. A page consists of parts of equal size; each part of all pages is
// one run of memory.
struct KvLayout {
  KvFormats format = {};
  size_t page_count = 0;
  size_t part_count = 0;  // of a page: where all layers are alike, one for each layer and head
  size_t part_bytes = 0;
  std::vector<AttentionWindow> windows;  // by group, of which there is at least one
  std::vector<KvLayer> layers;           // by GraphNode::layer; some may be one and the same

  size_t page_bytes() const { return part_count * part_bytes; }
  size_t size_bytes() const { return page_bytes() * page_count; }
  ArenaOffset<std::byte> part(size_t index) const {
    return {Arena::kKv, index * page_count * part_bytes};
  }
  // The block of a layer's head in page 0.
  ArenaOffset<std::byte> keys(size_t layer, size_t head) const {
    return {Arena::kKv, layers[layer].offset + head * layers[layer].head_stride_bytes};
  }
  // From a block's beginning to its values.
  size_t keys_bytes(size_t layer) const {
    return key_block_bytes(format.keys, layers[layer].key_dimension);
  }
  size_t most_heads() const;    // of a layer
  size_t widest_value() const;  // dimensions of a head's values
  size_t group_count() const { return windows.size(); }

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

// The KV heads that a rank stores of attention with keys of its own: those that it computes, or, of
// keys that every rank has, those that its queries attend to.
Range stored_heads(const Graph& graph, const Split& split, size_t rank, const GraphNode& attention);

KvLayout place_kv(const Graph& graph, const Split& split, size_t rank, KvFormats format,
                  size_t page_count);

}  // namespace lockstep
