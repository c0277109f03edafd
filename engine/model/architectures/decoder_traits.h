// The differences between families of decoders, as values; see decoder.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/kernels/activation_function.h"
#include "engine/kernels/rotary.h"
#include "engine/model/architectures/expert_mixture.h"
#include "engine/model/architectures/model_tensors.h"

namespace lockstep {

enum class NormKind : uint8_t {
  kRms,
  kLayer,  // with weights and biases where the file has them
};

// The norms of a layer, by their tensors' names; empty: there is none.
struct LayerNorms {
  std::string_view attention = "attn_norm";
  std::string_view feed_forward = "ffn_norm";
  // These norm what attention and the feed-forward give, before it is added.
  std::string_view behind_attention = {};
  std::string_view behind_feed_forward = {};
};

// The residual that a layer leaves.
enum class ResidualForm : uint8_t {
  kSequential,  // the feed-forward reads what attention has been added to
  kParallel,    // both read the layer's input, and both are added to it
};

// The layers whose tokens see a window of keys alone, and what differs in them.
struct WindowTraits {
  // attention.sliding_window holds for some layers: of so many the last one sees everything, or as
  // attention.sliding_window_pattern says. 0: for none; 1: for all.
  size_t period = 0;
  size_t tokens = 0;  // without the key attention.sliding_window; 0: then there is no window ...
  Presence presence = Presence::kOptional;  // ... or the key must be there
  // The base of these layers' rotary positions without rope.freq_base_swa; none: others' base.
  std::optional<double> rope_base = std::nullopt;
  bool is_scaled = true;       // their positions are scaled as others' are
  bool rotates_alone = false;  // other layers have no rotary positions
};

// The norms of queries and keys.
struct HeadNormTraits {
  Presence presence = Presence::kOptional;
  bool are_last = false;   // behind the rotary positions instead of before
  bool are_whole = false;  // over all heads at once
};

// The effect of the key logit_scale on the logits.
enum class LogitScale : uint8_t { kIgnored, kMultiplies, kDivides };

// The sizes that scales are made of.
struct DecoderSizes {
  size_t layers = 0;
  size_t columns = 0;  // of the residual
  size_t heads = 0;
  size_t head_dimension = 0;
};

struct DecoderTraits {
  RotaryPairs rotary_pairs = RotaryPairs::kInterleaved;
  NormKind norm = NormKind::kRms;
  LayerNorms norms = {};
  ResidualForm residual = ResidualForm::kSequential;
  Presence attention_biases = Presence::kOptional;  // of queries, keys and values
  Presence output_bias = Presence::kOptional;       // of attention
  HeadNormTraits head_norms = {};
  bool has_sinks = false;  // a score for each query head, without a value
  // Whether a layer's queries and keys have rotary positions; none: all layers'.
  bool (*has_rotary)(size_t layer) = nullptr;
  WindowTraits window = {};
  // The factor of scores, beside what positions bring; none: 1 / sqrt(head dimension).
  float (*score_factor)(const DecoderSizes& sizes) = nullptr;
  float score_cap = 0;    // without the key attn_logit_softcapping
  float logit_cap = 0;    // without the key final_logit_softcapping
  bool has_caps = false;  // the keys are read
  // The factor of embeddings; none: 1.
  float (*embedding_factor)(const DecoderSizes& sizes) = nullptr;
  // embedding_scale, residual_scale and attention.scale multiply, where the file has them.
  bool has_scales = false;
  LogitScale logit_scale = LogitScale::kIgnored;
  bool rounds_yarn_ramp = true;  // RopeShape's
  bool has_temperature = false;  // of queries, by attention.temperature_scale
  ActivationFunction activation = ActivationFunction::kSilu;
  bool is_gated = true;  // the feed-forward
  // Whether its models are mixtures of experts; without a value none is.
  std::optional<Presence> experts = std::nullopt;
  MixtureTraits mixture = {};
  bool has_latent_attention = false;  // of all layers
};

}  // namespace lockstep
