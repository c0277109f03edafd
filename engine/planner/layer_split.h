// Lays a graph over ranks layer by layer: each has consecutive layers, whole. Nothing is summed
// over ranks, so the bits are those of one rank; what goes from one rank to the next is a residual,
// once, at a border between their layers.
//
// The last rank has the first layers and the embedding, rank 0 the last ones and the logits. A
// matrix that is both embedding and output is held by both.
#pragma once

#include <cstdint>
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

// The split whose slowest rank has least to do: of the bytes that a pass multiplies with, each
// rank's over its share. Every rank multiplies. Fails with kInvalidInput where the graph has no
// border, too few for the ranks, or a rank no share.
Result<Split> split_layers(const Graph& graph, std::span<const double> shares);

// The same between given borders: one fewer than ranks, of find_layer_borders(), ascending.
Split split_at_borders(const Graph& graph, std::span<const LayerBorder> borders);

}  // namespace lockstep
