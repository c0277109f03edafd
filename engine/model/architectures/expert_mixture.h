// The feed-forward of a mixture of experts: a router scores the experts for each token, the token
// goes to those with the largest values, and what they make of it is summed by their weights; what
// shared experts make of every token may be added to it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/architectures/model_tensors.h"

namespace lockstep {

// The input of the router of a layer's experts.
enum class RouterInput : uint8_t {
  kExperts,  // what experts read
  kLayer,    // the layer's input, without a norm
  kOwnNorm,  // the residual by an RMS norm of its own, ffn_gate_inp.scale / sqrt(columns)
};

// The mixture of a family, where its files' keys do not say.
struct MixtureTraits {
  GatingFunction gating = GatingFunction::kSoftmax;  // without expert_gating_func
  bool is_normalized = true;                         // without expert_weights_norm
  Activation activation = {};                        // of experts, shared ones included
  RouterInput router = RouterInput::kExperts;
  bool is_gated = true;        // experts' feed-forwards
  bool weighs_inputs = false;  // Gating's
  size_t shared_experts = 0;   // without expert_shared_count
  // Without keys of their own, the experts of a token are together as wide as feed_forward_length,
  // and shared ones are.
  bool divides_width = false;
  bool is_told_by_tensors = false;  // a layer without ffn_gate_inp has no experts
  bool may_alternate = false;       // moe_every_n_layers may be 2: every second layer has experts
  bool has_adjugate = false;        // experts_per_group of them have an adjugate expert
};

// Experts of a second kind, each for a group of those of the first: a token goes to the adjugate
// expert of each of its experts, with the same weight. Wu et al.: Grove MoE, 2025. They read what
// experts read, as the published code has it, and weights are trained for that; llama.cpp lets them
// read what the experts made, and takes the weights of the experts with the groups' numbers.
struct AdjugateExperts {
  size_t group = 0;         // experts that share one
  size_t feed_forward = 0;  // of an adjugate one
  float scale = 0;          // of what they add
};

struct ExpertMixture {
  size_t experts = 0;              // of a layer
  size_t chosen = 0;               // to how many a token goes
  size_t feed_forward = 0;         // of an expert
  size_t shared_feed_forward = 0;  // of all shared experts together; 0: there are none
  size_t latent = 0;               // columns that experts read and give; 0: the residual's
  size_t dense_layers = 0;         // the first so many layers have no experts
  size_t step = 1;                 // of every so many layers the last one has experts
  Gating gating = {};
  Activation activation = {};
  bool is_gated = true;
  RouterInput router = RouterInput::kExperts;
  float epsilon = 0;  // of the router's norm
  std::optional<AdjugateExperts> adjugate = std::nullopt;

  bool has_experts(size_t layer) const {
    return experts > 0 && layer >= dense_layers && (layer + 1) % step == 0;
  }
};

// Reads the mixture of a file whose <architecture>.expert_count is above 0. Fails with
// kInvalidInput that names the key and its value.
Result<ExpertMixture> read_expert_mixture(ModelKeys& keys, const std::string& architecture,
                                          const MixtureTraits& traits, size_t layers);

// Values that a layer's experts and their router may read.
struct MixtureInputs {
  ValueId normed = kNone;    // what experts read
  ValueId residual = kNone;  // behind attention
  ValueId layer = kNone;     // before it
};

// Adds the feed-forward of the layer whose tensors' names begin with `block`. Returns what is to be
// added to the residual; after an error of `tensors`, the first input.
ValueId add_expert_mixture(Graph& graph, ModelTensors& tensors, const ExpertMixture& mixture,
                           const std::string& block, const MixtureInputs& inputs);

}  // namespace lockstep
