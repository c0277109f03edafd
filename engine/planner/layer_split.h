// Lays a graph over ranks layer by layer: each has consecutive layers, whole. Nothing is summed
// over ranks, so the bits are those of one rank; what goes from one rank to the next is a residual,
// once, at a border between their layers.
//
// The last rank has the first layers and the embedding, rank 0 the last ones and the logits. A
// matrix that is both embedding and output is held by both.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/graph/split.h"

namespace lockstep {

// All places where the graph can be cut, in order: one value, with rows of tokens, is all that
// nodes behind it read of those before, keys and values that attention has stored included. A layer
// of the usual decoder has two, behind attention and behind the feed-forward.
std::vector<LayerBorder> find_layer_borders(const Graph& graph);

// The memory of ranks with layers.
struct LayerMemory {
  std::vector<uint64_t> parts;  // taken by each part of the graph, between all of its borders
  std::vector<uint64_t> space;  // of each rank
};

// The split whose slowest rank has least to do: of the bytes that a pass multiplies with, each
// rank's over its share. Every rank multiplies. With `memory` the best of those whose ranks have
// space for their parts, or, where there is none, of all. Fails with kInvalidInput where the graph
// has no border, too few for the ranks, or a rank no share.
Result<Split> split_layers(const Graph& graph, std::span<const double> shares,
                           const std::optional<LayerMemory>& memory = {});

// The bytes of each part's weights in a file.
std::vector<uint64_t> weight_bytes_between(const Graph& graph,
                                           std::span<const LayerBorder> borders);

// The same between given borders: one fewer than ranks, of find_layer_borders(), ascending.
Split split_at_borders(const Graph& graph, std::span<const LayerBorder> borders);

}  // namespace lockstep
