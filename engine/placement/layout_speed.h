// The bytes that the ranks of a layout read for a generated token, how often they exchange, and how
// long they read by their memory's bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/architecture.h"
#include "engine/placement/model_layout.h"

namespace lockstep {

// The bytes of a rank's weights that one generated token reads: all of each matrix that is
// multiplied with, and of experts as many as it goes to.
struct ReadBytes {
  uint64_t all = 0;
  uint64_t experts = 0;  // of them
};

// By rank, of the nodes that it computes. What a token looks up (a row of the embedding, norms) is
// too little to count, and of the cache it depends on the context.
std::vector<ReadBytes> bytes_per_token(const Model& model, const ModelLayout& layout);

// Seconds until every rank has read its part of a token's weights: ranks wait for the slowest at a
// layer's dense weights, and again at its experts. Where GPUs and nodes have experts, a layer's are
// either's. The time of exchanges is not among it. `bytes_per_second`: of each rank, above 0; the
// first `gpu_count` are GPUs'.
double read_seconds(std::span<const ReadBytes> read, std::span<const double> bytes_per_second,
                    size_t gpu_count);

// The same where each rank has layers by itself: a token passes the ranks one after another.
double read_seconds_by_layers(std::span<const ReadBytes> read,
                              std::span<const double> bytes_per_second);

// The bytes that a prompted token has in what GPUs exchange, were the layout cut so: of every sum
// under `reduce`, of the residual at each border under `layers`. 0: it cannot be cut so.
uint64_t exchanged_bytes_per_token(const Model& model, const ModelLayout& layout,
                                   Strategy strategy);

// Barriers of all ranks in a token's pass, as rank 0's plan has them: all ranks meet at the same
// ones. Among GPUs alone these are sums over their links.
uint32_t exchanges_per_token(const Model& model, const ModelLayout& layout);

// Every rank's slices, by WeightId.
std::vector<std::vector<WeightSlice>> place_all_weights(const Model& model,
                                                        const ModelLayout& layout);

}  // namespace lockstep
