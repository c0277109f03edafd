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
#include "engine/model/architectures/state_space.h"

namespace lockstep {

enum class NormKind : uint8_t {
  kRms,
  kLayer,       // with weights, and biases where the file has them
  kPlainLayer,  // with neither
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

// The keys that a token of a layer with a window sees.
enum class WindowKind : uint8_t {
  kSliding,  // the last so many
  kSection,  // those of its own section of so many
};

// The layers whose tokens see a window of keys alone, and what differs in them. Their heads may
// have sizes of their own: attention.key_length_swa, value_length_swa and rope.dimension_count_swa.
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
  bool is_first_full = false;  // the first of a period's layers sees everything, not the last
  WindowKind kind = WindowKind::kSliding;
};

// The weights of norms of heads.
enum class HeadNormWeights : uint8_t {
  kShared,      // one of a head's dimensions, for all heads
  kOwn,         // each head has its own, of a layer norm without a bias
  kOwnRms,      // each head has its own, of an RMS norm
  kWhole,       // one of all heads, which are normed at once
  kUnweighted,  // there are none, and only heads with rotary positions are normed
};

// The norms of queries and keys.
struct HeadNormTraits {
  Presence presence = Presence::kOptional;
  bool are_last = false;  // behind the rotary positions instead of before
  HeadNormWeights weights = HeadNormWeights::kShared;
  bool of_values = false;  // values have RMS norms without weights
};

// The temperature of queries, where keys do not say another.
struct TemperatureTraits {
  Temperature usual = {};     // scale 0: there is none without attention.temperature_scale
  bool is_unrotated = false;  // only queries without rotary positions have one
};

// Experts beside a dense feed-forward, in each layer that has experts: both are added. The names
// are of norms; empty: there is none.
struct BesideTraits {
  bool reads_layer_input = false;  // experts read what attention does, not what it has added to
  bool is_square = false;          // the dense feed-forward is as wide as the residual
  std::string_view before_experts = {};
  std::string_view behind_experts = {};
  std::string_view behind_dense = {};
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

// The key heads of a delta net's value heads: DeltaShape's.
enum class DeltaHeads : uint8_t {
  kGrouped,
  kTiled,
  kKimi,  // Kimi Delta Attention: each has its own, in the layers without KV heads
};

// The layers that have a state space (state_space.h).
enum class StateSpaces : uint8_t {
  kAlone,         // all, and nothing else
  kInPlace,       // those without KV heads, in the place of attention
  kOfBareLayers,  // those with neither KV heads nor a feed-forward; a layer has one part
  kBesideOthers,  // all, beside attention
};

// Blocks behind the layers that predict further tokens (multi-token prediction: DeepSeek-V3, 2024).
// One is a layer as others are. It reads a product of two norms, of the embedding of a token and of
// the hidden state of the token before it: tensors nextn.enorm, nextn.hnorm and nextn.eh_proj.
struct PredictingTraits {
  HiddenForm given = HiddenForm::kNormed;   // of the states that it reads, the model's or its own
  std::string_view feed_forward_norm = {};  // by its tensor's name; empty: as in the layers
  bool ends_with_layer_norm = false;        // by attention.layer_norm_epsilon
};

struct DecoderTraits {
  RotaryPairs rotary_pairs = RotaryPairs::kInterleaved;
  NormKind norm = NormKind::kRms;
  LayerNorms norms = {};
  std::string_view output_norm = "output_norm";  // by its tensor's name
  // Embeddings are normed, by token_embd_norm; the first layer's attention may have no norm then.
  bool has_embedding_norm = false;
  ResidualForm residual = ResidualForm::kSequential;
  Presence attention_biases = Presence::kOptional;  // of queries, keys and values
  Presence output_bias = Presence::kOptional;       // of attention
  HeadNormTraits head_norms = {};
  // A score for each query head, without a value; none: there are no sinks.
  std::optional<Presence> sinks = std::nullopt;
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
  // Those of what is added to the residual, and of logits; likewise.
  float (*residual_factor)(const DecoderSizes& sizes) = nullptr;
  float (*logit_factor)(const DecoderSizes& sizes) = nullptr;
  // embedding_scale, residual_scale and attention.scale multiply, where the file has them.
  bool has_scales = false;
  LogitScale logit_scale = LogitScale::kIgnored;
  bool rounds_yarn_ramp = true;  // RopeShape's
  std::optional<TemperatureTraits> temperature = std::nullopt;
  bool clamps_inputs = false;  // queries, keys and values, by attention.clamp_kqv
  float alibi_bias = 0;        // AttentionTraits'
  // Values are keys before their norm and positions where the file has no attn_v.
  bool may_share_keys = false;
  // The last attention.shared_kv_layers read keys and values of earlier ones.
  bool shares_layers = false;
  // Layers may have no attention (no heads), a product in its place (no KV heads) or no
  // feed-forward (no columns).
  bool may_lack_parts = false;
  // Layers without KV heads have a gated short convolution in the place of attention, over
  // shortconv.l_cache tokens.
  bool has_convolutions = false;
  // attn_q has behind each head's queries as many rows that gate what attention gives the head.
  bool has_query_gates = false;
  // Some layers have a gated delta net in the place of attention (delta_net.h); none: no layer has.
  std::optional<DeltaHeads> delta_nets = std::nullopt;
  std::optional<StateSpaces> state_spaces = std::nullopt;
  StateSpaceKind state_space_kind = StateSpaceKind::kMamba2;
  // Each token has an embedding for each layer, by embedding_length_per_layer_input.
  bool has_layer_embeddings = false;
  bool has_output_scales = false;  // layers' results, by layer_output_scale.weight
  bool has_value_scale = false;    // attention.value_scale multiplies what attention gives
  ActivationFunction activation = ActivationFunction::kSilu;
  bool is_gated = true;  // the feed-forward
  // Whether its models are mixtures of experts; without a value none is.
  std::optional<Presence> experts = std::nullopt;
  MixtureTraits mixture = {};
  std::optional<BesideTraits> beside = std::nullopt;
  bool has_latent_attention = false;                          // of all layers
  std::optional<PredictingTraits> predicting = std::nullopt;  // none: no such blocks are known
  bool layers_predict = false;  // nextn_predict_layers counts the layers themselves
  // The keys attention.indexer.* choose which keys a token sees: of so many as top_k at most all.
  bool has_indexer = false;
  // Tokens see those behind them, too, in windowed layers half of a window; the model embeds.
  bool is_encoder = false;
  // A head that ranks has this activation, and a norm; none: tanh, and no norm.
  std::optional<ActivationFunction> head_activation = std::nullopt;
  bool head_reads_mean = false;  // of all tokens' states; else one token's
};

}  // namespace lockstep
