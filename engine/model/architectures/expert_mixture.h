// The feed-forward of a mixture of experts: a router scores the experts for each token, the token
// goes to those with the largest scores, and what they make of it is summed by their weights, which
// add up to 1 (Mixtral, Qwen 3).
#pragma once

#include <cstddef>
#include <string>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/architectures/model_tensors.h"

namespace lockstep {

struct ExpertMixture {
  size_t experts = 0;       // of a layer
  size_t chosen = 0;        // to how many a token goes
  size_t feed_forward = 0;  // of an expert
};

// Reads the mixture of a file whose <architecture>.expert_count is above 0. Refuses what would need
// other experts, other weights of them, or layers without.
Result<ExpertMixture> read_expert_mixture(ModelKeys& keys, const std::string& architecture,
                                          size_t layers);

// Adds the feed-forward of the layer whose tensors' names begin with `block`; `h` is the normed
// residual. Returns what is to be added to the residual; after an error of `tensors`, `h`.
ValueId add_expert_mixture(Graph& graph, ModelTensors& tensors, const ExpertMixture& mixture,
                           const std::string& block, ValueId h);

}  // namespace lockstep
