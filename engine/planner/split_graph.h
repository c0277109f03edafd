// Lays a graph's tensors over the ranks, as the operations' rows say and as what reads a product
// needs it.
//
// gather: every matrix is cut by output rows; each rank computes its rows over the whole input, and
//   what it has computed is pushed into every other rank's copy, in the form in which it is
//   consumed there. Residuals stay cut: a rank holds those of its rows. No sum is ever cut: the
//   results have the same bits for any number of ranks and any shares.
// reduce: what reads a sliced input (the attention's and the feed-forward's second products) is cut
//   by columns; the ranks' partial results are summed in order of rank. Two exchanges per layer.
//   Columns are cut at whole blocks of the format. Where a layer has fewer of them than ranks have
//   shares, some ranks have none of it and add nothing to its sum: of feed-forwards and experts
//   other ranks in every layer, of attention (whole heads and whole blocks) always the same ones.
// layers: no tensor is cut; each rank has consecutive layers, whole (layer_split.h).
//
// Biases are cut with the rows of their matrices; one in blocks at whole blocks, and so its rows.
//
// Attention is cut by query heads, at whole groups of a KV head where there are enough of them;
// otherwise several ranks hold the same KV head. Embedding and output are cut by vocabulary rows.
// All experts of a mixture are cut alike; the matrix that chooses among them is mirrored.
//
// Ranks may have a share of a mixture's experts alone, or of all else alone. From where on one rank
// is the only one to compute, nothing is exchanged any more: the residual is that rank's.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "engine/base/range.h"
#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/graph/split.h"

namespace lockstep {

// Each rank's share of the work, in any unit.
struct Shares {
  std::vector<double> dense;    // of the weights that every token reads
  std::vector<double> experts;  // of a mixture's experts ...
  // ... in its first so many layers with experts; in those after them experts are shared as
  // the dense weights are.
  size_t apart_layers = std::numeric_limits<size_t>::max();
};

// A rank may have none of one of both, under kReduce. Fails with kInvalidInput, naming rank and
// remedy, where a rank would be left without any work, and nowhere else. Under kLayers the dense
// shares are those of all weights, and a graph that cannot be cut between layers is refused too.
Result<Split> split_graph(const Graph& graph, const Shares& shares, Strategy strategy);

// The same share of both for each rank.
Result<Split> split_graph(const Graph& graph, std::span<const double> shares, Strategy strategy);

// Cuts [0, total) into one range per share, at multiples of `unit`.
std::vector<Range> cut(size_t total, size_t unit, std::span<const double> shares);

}  // namespace lockstep
