#include "engine/graph/kv_layout.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"

namespace lockstep {
namespace {

// The passes that a grouping is chosen for; their length changes little.
constexpr size_t kGroupingPassTokens = 512;
// Groupings whose cost differs by less than a part of so many are nearly the same.
constexpr size_t kNearlySame = 50;

struct StoredLayer {
  size_t layer = 0;
  size_t elements = 0;  // of one token's keys and values
};
using LayersByWindow = std::map<AttentionWindow, std::vector<StoredLayer>>;

LayersByWindow find_layers(const Graph& graph) {
  LayersByWindow classes;
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation != Operation::kAttention || node.stored_by != kNone) continue;
    const size_t elements =
        node.kv_head_count * (node.head_dimension + stored_value_dimension(node));
    classes[{node.attention.window, node.attention.section}].push_back({node.layer, elements});
  }
  for (auto& [window, layers] : classes) std::ranges::sort(layers, {}, &StoredLayer::layer);
  return classes;
}

// Puts layers, in order, into as few groups as have space for so many elements each; calls begin()
// for each group and add(layer) for each layer.
void fill_groups(const std::vector<StoredLayer>& layers, size_t capacity, auto&& begin,
                 auto&& add) {
  size_t taken = capacity;
  for (const StoredLayer& layer : layers) {
    if (taken + layer.elements > capacity) {
      begin();
      taken = 0;
    }
    add(layer.layer);
    taken += layer.elements;
  }
}

size_t count_groups(const std::vector<StoredLayer>& layers, size_t capacity) {
  size_t count = 0;
  fill_groups(
      layers, capacity, [&] { ++count; }, [](size_t) {});
  return count;
}

size_t total_elements(const std::vector<StoredLayer>& layers) {
  size_t total = 0;
  for (const StoredLayer& layer : layers) total += layer.elements;
  return total;
}

// The least capacities with which the layers of one window make 1, 2, 3 ... groups.
std::vector<size_t> capacities(const std::vector<StoredLayer>& layers) {
  std::vector<size_t> found;
  for (size_t count = 1; count <= layers.size(); ++count) {
    size_t too_small = std::ranges::max(layers, {}, &StoredLayer::elements).elements - 1;
    size_t fitting = total_elements(layers);
    while (too_small + 1 < fitting) {
      const size_t middle = too_small + (fitting - too_small) / 2;
      (count_groups(layers, middle) <= count ? fitting : too_small) = middle;
    }
    found.push_back(fitting);
  }
  return found;
}

struct Grouping {
  std::vector<KvGroup> groups;
  size_t cost = 0;  // elements of a long sequence
};

Grouping group_with(const LayersByWindow& classes, size_t capacity) {
  Grouping grouping;
  for (const auto& [window, layers] : classes) {
    const size_t pages = window.most_pages(kKvGroupingTokens, kGroupingPassTokens, kPageTokens);
    fill_groups(
        layers, capacity,
        [&] {
          grouping.groups.push_back({window, {}});
          grouping.cost += pages * kPageTokens * capacity;
        },
        [&](size_t layer) { grouping.groups.back().layers.push_back(layer); });
  }
  return grouping;
}

// All layers keep all tokens.
Grouping group_as_one(const LayersByWindow& classes) {
  std::vector<StoredLayer> all;
  for (const auto& [window, layers] : classes) all.insert(all.end(), layers.begin(), layers.end());
  std::ranges::sort(all, {}, &StoredLayer::layer);
  return group_with({{AttentionWindow(), all}}, total_elements(all));
}

// The part of the cache that a rank has of one layer.
KvLayer measure_layer(const Graph& graph, const Split& split, size_t rank, const GraphNode& node) {
  KvLayer layer;
  layer.head_count = stored_heads(graph, split, rank, node).size();
  layer.key_dimension = node.head_dimension;
  layer.value_dimension = node.value_dimension;
  layer.has_values_in_keys = has_values_in_keys(node);
  return layer;
}

size_t block_bytes(const KvFormats& format, const KvLayer& layer) {
  return key_block_bytes(format.keys, layer.key_dimension) +
         value_block_bytes(format.values, layer.stored_value_dimension());
}

bool are_alike(const KvLayer& one, const KvLayer& other) {
  return one.head_count == other.head_count && one.key_dimension == other.key_dimension &&
         one.value_dimension == other.value_dimension &&
         one.has_values_in_keys == other.has_values_in_keys;
}

// For layers that are alike: the pages of a layer's head follow one another in memory.
void place_alike(const std::vector<KvGroup>& groups, KvLayout& kv) {
  const KvLayer& first = kv.layers[groups.front().layers.front()];
  size_t slots = 0;
  for (const KvGroup& group : groups) slots = std::max(slots, group.layers.size());
  kv.part_count = slots * first.head_count;
  kv.part_bytes = block_bytes(kv.format, first);
  for (const KvGroup& group : groups) {
    for (size_t slot = 0; slot < group.layers.size(); ++slot) {
      KvLayer& layer = kv.layers[group.layers[slot]];
      layer.head_stride_bytes = kv.page_count * kv.part_bytes;
      layer.page_stride_bytes = kv.part_bytes;
      layer.offset = slot * layer.head_count * layer.head_stride_bytes;
    }
  }
}

// For layers that differ: a page is one piece of memory.
void place_apart(const std::vector<KvGroup>& groups, KvLayout& kv) {
  kv.part_count = 1;
  for (const KvGroup& group : groups) {
    size_t offset = 0;
    for (const size_t index : group.layers) {
      KvLayer& layer = kv.layers[index];
      layer.offset = offset;
      layer.head_stride_bytes = block_bytes(kv.format, layer);
      offset += layer.head_count * layer.head_stride_bytes;
    }
    kv.part_bytes = std::max(kv.part_bytes, offset);
  }
  for (KvLayer& layer : kv.layers) layer.page_stride_bytes = kv.part_bytes;
}

// The layers of which the rank has heads.
std::vector<KvGroup> held_groups(std::vector<KvGroup> groups, const KvLayout& kv) {
  for (KvGroup& group : groups) {
    std::erase_if(group.layers, [&](size_t layer) { return kv.layers[layer].head_count == 0; });
  }
  std::erase_if(groups, [](const KvGroup& group) { return group.layers.empty(); });
  return groups;
}

void place_layers(const std::vector<KvGroup>& groups, KvLayout& kv) {
  if (groups.empty()) return;
  const KvLayer& first = kv.layers[groups.front().layers.front()];
  const bool all_alike = std::ranges::all_of(groups, [&](const KvGroup& group) {
    return std::ranges::all_of(group.layers,
                               [&](size_t layer) { return are_alike(kv.layers[layer], first); });
  });
  all_alike ? place_alike(groups, kv) : place_apart(groups, kv);
}

}  // namespace

std::vector<KvGroup> group_kv_layers(const Graph& graph) {
  const LayersByWindow classes = find_layers(graph);
  if (classes.empty()) return {};
  if (graph.keeps_all_keys()) return group_as_one(classes).groups;
  if (classes.size() == 1) {
    return group_with(classes, total_elements(classes.begin()->second)).groups;
  }
  std::vector<Grouping> choices = {group_as_one(classes)};
  size_t largest = 0;
  for (const auto& [window, layers] : classes) {
    largest = std::max(largest, std::ranges::max(layers, {}, &StoredLayer::elements).elements);
  }
  for (const auto& [window, layers] : classes) {
    for (const size_t capacity : capacities(layers)) {
      if (capacity >= largest) choices.push_back(group_with(classes, capacity));
    }
  }
  std::ranges::stable_sort(choices, {}, [](const Grouping& one) { return one.groups.size(); });
  const size_t least = std::ranges::min(choices, {}, &Grouping::cost).cost;
  const auto good = std::ranges::find_if(
      choices, [&](const Grouping& one) { return one.cost <= least + least / kNearlySame; });
  return good->groups;
}

std::optional<size_t> whole_group(std::span<const AttentionWindow> windows) {
  const auto whole = std::ranges::find_if(windows, &AttentionWindow::sees_all);
  if (whole == windows.end()) return std::nullopt;
  return static_cast<size_t>(whole - windows.begin());
}

KvPageCount::KvPageCount(const Graph& graph, size_t batch_tokens) : batch_tokens_(batch_tokens) {
  for (const KvGroup& group : group_kv_layers(graph)) windows_.push_back(group.window);
  if (windows_.empty()) windows_.emplace_back();
}

size_t KvPageCount::of_sequence(size_t tokens) const {
  return most_pages(windows_, tokens, batch_tokens_, kPageTokens);
}

size_t KvPageCount::tokens_within(size_t pages) const {
  // No sequence is longer than positions can count, though windows may hold any length.
  size_t fitting = 0;
  size_t beyond = (size_t{1} << 32U) / kPageTokens;
  while (fitting + 1 < beyond) {
    const size_t middle = fitting + (beyond - fitting) / 2;
    (of_sequence(middle * kPageTokens) <= pages ? fitting : beyond) = middle;
  }
  return fitting * kPageTokens;
}

size_t KvLayout::most_heads() const {
  size_t most = 0;
  for (const KvLayer& layer : layers) most = std::max(most, layer.head_count);
  return most;
}

size_t KvLayout::widest_value() const {
  size_t widest = 0;
  for (const KvLayer& layer : layers) widest = std::max(widest, layer.value_dimension);
  return widest;
}

Range stored_heads(const Graph& graph, const Split& split, size_t rank,
                   const GraphNode& attention) {
  const ValueSplit& keys = split.values[attention.inputs[1]];
  if (keys.kind == SplitKind::kSliced) {
    const Range columns = keys.columns[rank];
    return {columns.begin / attention.head_dimension, columns.end / attention.head_dimension};
  }
  const ValueSplit& output = split.values[attention.output];
  const Range all = {0, graph.columns(attention.output)};
  const Range columns = output.kind == SplitKind::kSliced ? output.columns[rank] : all;
  if (columns.empty()) return {};
  const size_t group = attention.head_count / attention.kv_head_count * attention.value_dimension;
  return {columns.begin / group, divide_up(columns.end, group)};
}

KvLayout place_kv(const Graph& graph, const Split& split, size_t rank, KvFormats format,
                  size_t page_count) {
  KvLayout kv;
  kv.format = format;
  kv.page_count = page_count;
  const std::vector<KvGroup> groups = group_kv_layers(graph);
  if (groups.empty()) {
    kv.windows.emplace_back();
    return kv;
  }
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation != Operation::kAttention) continue;
    if (kv.layers.size() <= node.layer) kv.layers.resize(node.layer + 1);
    if (node.stored_by != kNone) continue;
    KvLayer& layer = kv.layers[node.layer];
    CHECK(layer.key_dimension == 0, "layer {} is stored twice", node.layer);
    layer = measure_layer(graph, split, rank, node);
  }
  for (size_t index = 0; index < groups.size(); ++index) {
    kv.windows.push_back(groups[index].window);
    for (const size_t layer : groups[index].layers) kv.layers[layer].group = index;
  }
  place_layers(split.is_by_layers() ? held_groups(groups, kv) : groups, kv);
  for (const GraphNode& node : graph.nodes()) {
    if (node.operation != Operation::kAttention || node.stored_by == kNone) continue;
    kv.layers[node.layer] = kv.layers[graph.producer(node.stored_by).layer];
  }
  return kv;
}

}  // namespace lockstep
