// A model's computation over whole tensors: a list of operations in an order in which they can be
// computed. Knows nothing of ranks, threads or devices. Built once per model by its Architecture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/range.h"
#include "engine/kernels/activation_function.h"
#include "engine/kernels/gating.h"
#include "engine/kernels/rotary.h"
#include "engine/tensor/format.h"

namespace lockstep {

using ValueId = size_t;   // an activation: `columns` floats per token
using WeightId = size_t;  // a tensor of the model file

// A tensor that the graph reads. One WeightId per tensor: a matrix that is used twice (tied
// embeddings) is held once.
struct Weight {
  std::string name;              // in the file
  Format format = Format::kF32;  // in the file
  size_t rows = 1;               // 1 for a vector
  size_t columns = 0;
  bool is_matrix = false;  // packed for products; vectors are held as f32
  // The offset in the file's tensor, in rows (of a vector: in the format's blocks). One tensor
  // may hold several weights: a layer's experts, or its queries, keys and values.
  size_t first_row = 0;
  float scale = 1;  // of a matrix: multiplies its products, before their bias
};

enum class Operation : uint8_t {
  kEmbed,      // weight[token, or another EmbedIndex]             -> columns of the weight
  kGivenRows,  // the row that the batch brings with each token: another model's, or its own before
  kRmsNorm,    // x * rsqrt(mean(x^2) + epsilon) * weight, or without a weight
  kLayerNorm,  // (x - mean(x)) * rsqrt(variance(x) + epsilon) * weight + bias, or without these
  // kRmsNorm of each head by itself, or kLayerNorm without a bias: with one weight for all heads,
  // one for each, or none.
  kHeadNorm,
  kMatmul,  // weight * x, * the weight's scale, + bias
  // Each head by itself: of the weight's rows, in as many equal parts as there are heads, the
  // head's own * x.
  kHeadMatmul,
  kRotary,  // rotary positions, each head by itself
  // Inputs q, k, v: stores k and v in the cache and attends over the sequence so far; q and k: a
  // key's first dimensions are its value; q alone: over what an earlier one has stored.
  kAttention,
  kActivation,  // activation(x)
  kGate,        // activation(x) * y
  kAdd,         // x + y
  kScale,       // scale * x
  kSoftCap,     // scale * tanh(x / scale)
  kClamp,       // x, at least -scale and at most scale
  kScaleRows,   // inputs x, y with one column: x * activation(y of the same row)
  kSelectRows,  // only the tokens whose logits are asked for
  kMeanRows,    // of these, the mean over all tokens of their sequence
  kSliceHeads,  // of each head some columns
  kJoinHeads,   // inputs x, y: each head's columns of x and then those of y, or of y's only head
  // x * a factor of the token's position: Temperature.
  kTemperature,
  // Each column by itself over its sequence's last tokens: Graph::convolve(). Keeps a state.
  kConvolution,
  // Inputs v, q, k, beta, alpha: DeltaShape, in delta_net(). Keeps a state.
  kDeltaNet,
  // Inputs x, c, b, steps: DeltaShape, in scan(). Keeps a state.
  kScan,
  // A mixture of experts: each token goes to a few of them. What experts compute has a row for each
  // expert of each token.
  kRoute,         // of scores, one per expert: the experts with the largest, and their weights
  kExpertMatmul,  // inputs x, routing: the experts' matrices * x, + biases
  kExpertSum,     // inputs x, routing: per token the sum of the experts' weights *
                  // (matrix * x, + bias)
};

// Whether there is a row for each token whose logits are asked for, of an operand that has one for
// every token.
inline bool gives_logit_rows(Operation operation) {
  return operation == Operation::kSelectRows || operation == Operation::kMeanRows;
}

inline constexpr size_t kOperationCount = 27;

inline constexpr size_t kNone = static_cast<size_t>(-1);

// The rows of a pass that a value has, and a step runs over.
enum class Rows : uint8_t {
  kTokens,   // every token of the batch
  kLogits,   // those whose logits are asked for, in the batch's order
  kExperts,  // each token once for every expert that it goes to, in the order of a Routing
};

// A routing is among so many at most.
inline constexpr size_t kMostExperts = 1024;

// A convolution is over so many tokens at least and at most.
inline constexpr size_t kLeastTaps = 2;
inline constexpr size_t kMostTaps = 16;

// The most dimensions of a key that a delta net has, and of a value whose norm and gate can be a
// part of its step.
inline constexpr size_t kMostDeltaDimensions = 256;
inline constexpr size_t kMostGatedDimensions = 256;
// The most columns of a scan that are computed at once: those of the fewest heads that are whole
// chunks.
inline constexpr size_t kMostScannedColumns = 512;

// The heads of a gated delta net or a scan: each key head belongs to as many value heads as
// another.
struct DeltaShape {
  size_t value_heads = 0;
  size_t key_heads = 0;
  // Value head h has key head h modulo key_heads; else those of a key head follow one another.
  bool is_tiled = false;
  float epsilon = 0;  // of the norms of queries and keys; kDeltaNet

  size_t key_head(size_t value_head) const {
    return is_tiled ? value_head % key_heads : value_head / (value_heads / key_heads);
  }
  friend bool operator==(const DeltaShape&, const DeltaShape&) = default;
};

// The two forms of a token's hidden state behind the last layer.
enum class HiddenForm : uint8_t {
  kNormed,    // what the last norm gives, and logits are products of
  kResidual,  // what the last norm reads
};

// Which row of a table a token looks up.
enum class EmbedIndex : uint8_t {
  kToken,
  kPosition,  // in its sequence
  kSegment,   // of two texts that are one sequence: 0 in the first one
};

inline constexpr size_t kAllAhead = static_cast<size_t>(-1);

// The definition of attention beside the shapes of its operands.
struct AttentionTraits {
  float scale = 0;     // of the scores
  size_t window = 0;   // most keys that a token sees, its own included; 0: all
  size_t section = 0;  // tokens of a section: keys of others are not seen; 0: no sections
  // Most keys behind its own that a token sees, of those of its sequence; kAllAhead: all. Not 0:
  // a sequence is one pass's as a whole.
  size_t ahead = 0;
  float score_cap = 0;     // scaled scores become cap * tanh(score / cap); 0: no cap
  float alibi_bias = 0;    // -alibi_slope() * |key's position - token's| is added; 0: none
  WeightId sinks = kNone;  // one per query head: one more score, which has no value
};

// The slope of one of `head_count` query heads. O. Press, N. Smith, M. Lewis: Train Short, Test
// Long, 2022. Of n heads, n a power of two, head h has 2^(-bias * (h + 1) / n); the heads beyond
// the greatest such n have every second slope of 2 n heads.
float alibi_slope(size_t head, size_t head_count, float bias);

// The factor 1 + scale * ln(1 + (position + offset) / tokens), the quotient rounded down.
struct Temperature {
  float scale = 0;
  size_t tokens = 1;
  size_t offset = 0;

  friend bool operator==(const Temperature&, const Temperature&) = default;
};

// The columns that norms sum at a time, chunk after chunk; and kHeadMatmul's heads are whole
// blocks.
inline constexpr size_t kChunkColumns = 32;
inline constexpr size_t kHeadBlock = 32;

struct GraphNode {
  Operation operation = Operation::kEmbed;
  std::vector<ValueId> inputs = {};
  ValueId output = kNone;
  WeightId weight = kNone;
  WeightId bias = kNone;
  WeightId skip = kNone;   // kScan: a factor of each head
  size_t decay_count = 1;  // kDeltaNet, kScan: of a head: one, or one for each row of its state
  float epsilon = 0;
  bool subtracts_mean = false;         // kHeadNorm: as kLayerNorm does
  size_t head_count = 0;               // of the operand; query heads for kAttention
  size_t kv_head_count = 0;            // kAttention; kJoinHeads: of the second operand
  size_t head_dimension = 0;           // of the operand; kAttention: of queries and keys
  size_t first_column = 0;             // kSliceHeads: of a head
  size_t value_dimension = 0;          // kAttention
  size_t layer = 0;                    // kAttention
  EmbedIndex index = {};               // kEmbed
  ValueId stored_by = kNone;           // kAttention: whose keys and values it reads; none: its own
  AttentionTraits attention = {};      // kAttention
  float scale = 0;                     // kScale, kSoftCap, kClamp
  Temperature temperature = {};        // kTemperature
  DeltaShape delta = {};               // kDeltaNet, kScan
  size_t taps = 0;                     // kConvolution: tokens, its own included
  Activation activation = {};          // kActivation, kGate, kScaleRows
  size_t rotary = 0;                   // kRotary: which of the graph's tables
  std::vector<WeightId> experts = {};  // kExpertMatmul, kExpertSum: one matrix for each ...
  std::vector<WeightId> biases = {};   // ... and a vector, or none at all
  size_t expert_count = 0;             // kRoute: among so many ...
  size_t chosen_count = 0;             // ... so many are chosen for a token ...
  Gating gating = {};                  // ... so, with `bias` or without
};

// Whether the values of this attention's cache are its keys' first dimensions.
inline bool has_values_in_keys(const GraphNode& attention) {
  return attention.stored_by == kNone && attention.inputs.size() == 2;
}
// The dimensions of values that stand in its cache by themselves.
inline size_t stored_value_dimension(const GraphNode& attention) {
  return has_values_in_keys(attention) ? 0 : attention.value_dimension;
}

// The angle of pair i at position p is (p + offset) * frequencies[i].
struct Rotary {
  RotaryPairs pairs = RotaryPairs::kInterleaved;
  std::vector<double> frequencies;  // half as many as dimensions are rotated; the rest stay
  double magnitude = 1;             // multiplies cosines and sines
  size_t offset = 0;

  friend bool operator==(const Rotary&, const Rotary&) = default;
};

class Graph {
 public:
  // `first_row`, `scale`: Weight's.
  WeightId add_matrix(std::string name, Format format, size_t rows, size_t columns,
                      size_t first_row = 0, float scale = 1);
  WeightId add_vector(std::string name, Format format, size_t columns, size_t first_row = 0);
  // Returns its number.
  size_t add_rotary(Rotary rotary);

  // Each adds a node and returns its output.
  ValueId embed(WeightId table, EmbedIndex index = EmbedIndex::kToken);
  // Batch::given_rows. A graph reads them once.
  ValueId given_rows(size_t columns);
  ValueId rms_norm(ValueId x, WeightId weight, float epsilon);
  ValueId layer_norm(ValueId x, WeightId weight, WeightId bias, float epsilon);
  // `weight`: of a head's columns, or of all heads' columns.
  ValueId head_norm(ValueId x, WeightId weight, float epsilon, size_t head_count);
  ValueId head_layer_norm(ValueId x, WeightId weight, float epsilon, size_t head_count);
  // Each head, by itself, over the root of (the sum of its squares + epsilon): a norm and a scale.
  ValueId l2_norm(ValueId x, float epsilon, size_t head_count = 1);
  ValueId matmul(ValueId x, WeightId weight, WeightId bias = kNone);
  // A head's columns, of x and of the result, are whole chunks: multiples of kHeadBlock.
  ValueId head_matmul(ValueId x, WeightId weight, size_t head_count);
  // Columns [first, first + count) of each head.
  ValueId slice_heads(ValueId x, size_t head_count, size_t first, size_t count);
  // `y`: of as many heads, or one head's columns, which follow on those of every head of x.
  ValueId join_heads(ValueId x, size_t head_count, ValueId y, size_t y_head_count);
  ValueId rotary(ValueId x, size_t head_count, size_t rotary = 0);
  ValueId attention(size_t layer, ValueId q, ValueId k, ValueId v, size_t head_count,
                    size_t kv_head_count, const AttentionTraits& traits);
  // Attention whose values are the first `value_dimension` dimensions of its keys: they are stored
  // once. DeepSeek-V2, 2024: multi-head latent attention.
  ValueId latent_attention(size_t layer, ValueId q, ValueId k, size_t head_count,
                           size_t kv_head_count, size_t value_dimension,
                           const AttentionTraits& traits);
  // Attention over the keys and values of an earlier layer, whose attention gave `attended`: with
  // as many heads, and within the same window.
  ValueId attention_over(size_t layer, ValueId attended, ValueId q, const AttentionTraits& traits);
  ValueId activation(const Activation& function, ValueId x);
  ValueId gate(const Activation& function, ValueId x, ValueId y);
  ValueId add(ValueId x, ValueId y);
  ValueId scale(ValueId x, float factor);
  ValueId soft_cap(ValueId x, float cap);
  ValueId clamp(ValueId x, float bound);
  // `factors`: of one column.
  ValueId scale_rows(const Activation& function, ValueId factors, ValueId x);
  ValueId temperature(ValueId x, const Temperature& temperature);
  // The sum over the last `taps` tokens of its sequence, its own included, of a factor times the
  // token's x; without those before the sequence's first. `weight`: a vector with the factors of
  // each column, the earliest token's first; `bias`: a vector that is added, or none.
  ValueId convolve(ValueId x, WeightId weight, WeightId bias = kNone);
  // The same of before * x, the sum times behind: the short convolution of LFM2, 2025.
  ValueId convolve_gated(ValueId x, ValueId before, ValueId behind, WeightId weight,
                         WeightId bias = kNone);
  // A gated delta net (S. Yang, J. Kautz, A. Hatamizadeh, 2024), or Kimi Delta Attention (Kimi
  // Team: Kimi Linear, arXiv 2510.26692), in which each row of S has a decay of its own. A value
  // head has a matrix S of its key's dimensions times its values'; before the sequence's first
  // token it is zero. With q' = q / sqrt(q q + epsilon) / sqrt(dimensions), k' = k / sqrt(k k +
  // epsilon),
  //   S <- S * exp(decay * softplus(alpha + bias))
  //   S <- S + k' (sigmoid(beta) * (v - S^T k'))^T
  // it gives S^T q'. `beta`: a column for each value head, `decay` a vector alike; `alpha`: as many
  // columns of each as it has decays, one or one for each row of S, `bias` a vector alike.
  ValueId delta_net(ValueId v, ValueId q, ValueId k, ValueId beta, ValueId alpha, WeightId decay,
                    WeightId bias, const DeltaShape& shape);
  // A selective scan. A head of x has a matrix S of as many rows as b and c have columns in a group
  // (`shape`: a key head), times its own columns; before the sequence's first token it is zero.
  // With t = softplus(steps + bias),
  //   S <- exp(decay * t) * S + b (t * x)^T
  // it gives S^T c + skip * x. `steps`: a column for each head; `bias`, `skip`: vectors alike.
  // `decay`: one for each head, which decays as a whole (T. Dao, A. Gu: Mamba-2, 2024), or one for
  // each row of a head's S, the rows of a head one after the other, where heads have one column and
  // are of one group (A. Gu, T. Dao: Mamba, 2023).
  ValueId scan(ValueId x, ValueId c, ValueId b, ValueId steps, WeightId decay, WeightId bias,
               WeightId skip, const DeltaShape& shape);
  ValueId select_rows(ValueId x);
  // The mean of the rows of all of a token's sequence, for each token whose logits are asked for:
  // behind attention that sees all tokens ahead, so that the sequence is in one pass.
  ValueId mean_rows(ValueId x);
  // Each token goes to `chosen_count` experts. `bias`: a vector that is added to the experts'
  // values where they are chosen, and not to their weights; or none.
  ValueId route(ValueId scores, size_t chosen_count, const Gating& gating = {},
                WeightId bias = kNone);
  // `biases`: a vector for each expert, or none at all.
  ValueId expert_matmul(ValueId x, ValueId routing, std::vector<WeightId> experts,
                        std::vector<WeightId> biases = {});
  ValueId expert_sum(ValueId x, ValueId routing, std::vector<WeightId> experts,
                     std::vector<WeightId> biases = {});
  void set_logits(ValueId logits) { logits_ = logits; }
  // Keeps the value's rows, of every token, from their step until the next pass begins: they can be
  // read in between. Values are numbered in the order of the calls; one may be kept twice.
  void keep(ValueId value);
  // Keeps keys and values of all tokens, those of layers with windows as well: pages of one table
  // hold all layers then, whatever they see (group_kv_layers()).
  void keep_all_keys() { keeps_all_keys_ = true; }

  const std::vector<Weight>& weights() const { return weights_; }
  const std::vector<GraphNode>& nodes() const { return nodes_; }
  const GraphNode& producer(ValueId value) const { return nodes_[value]; }
  const std::vector<Rotary>& rotaries() const { return rotaries_; }
  size_t columns(ValueId value) const { return columns_[value]; }
  Rows rows(ValueId value) const { return rows_[value]; }
  size_t value_count() const { return columns_.size(); }
  ValueId logits() const { return logits_; }
  const std::vector<ValueId>& kept() const { return kept_; }
  bool keeps_all_keys() const { return keeps_all_keys_; }
  // The columns of the rows that batches bring with tokens; 0: they bring none.
  size_t given_columns() const { return given_columns_; }
  // Whether tokens see keys behind their own.
  bool sees_ahead() const;
  // Whether a layer keeps a state of each sequence beside, or instead of, keys and values.
  bool has_states() const;
  // To how many experts a token goes, at most of all layers; 0: the model is no mixture.
  size_t chosen_experts() const { return chosen_experts_; }
  // The number of experts of the layer that has most; 0: the model is no mixture.
  size_t most_experts() const { return most_experts_; }
  // The matrices that score a mixture's experts.
  std::set<WeightId> routers() const;

 private:
  ValueId append(GraphNode node, size_t columns);
  ValueId append_attention(GraphNode node);
  ValueId append_experts(GraphNode node);
  ValueId append_convolution(GraphNode node);
  ValueId append_head_norm(ValueId x, WeightId weight, float epsilon, size_t head_count,
                           bool subtracts_mean);

  std::vector<Weight> weights_;
  std::vector<GraphNode> nodes_;
  std::vector<size_t> columns_;  // by value: each node's output, in order
  std::vector<Rows> rows_;       // by value
  std::vector<Rotary> rotaries_;
  ValueId logits_ = kNone;
  std::vector<ValueId> kept_;
  bool keeps_all_keys_ = false;
  size_t given_columns_ = 0;
  size_t chosen_experts_ = 0;
  size_t most_experts_ = 0;
};

// Whether the node keeps a state of each sequence from one pass to the next.
inline bool has_state(const GraphNode& node) {
  return node.operation == Operation::kConvolution || node.operation == Operation::kDeltaNet ||
         node.operation == Operation::kScan;
}

// The columns of a delta net's or a scan's input that these of its value heads read.
Range delta_operand(const GraphNode& node, size_t input, Range value_heads);
// The key head of each of these value heads, by its place in delta_operand() of input 1.
std::vector<uint32_t> own_key_heads(const GraphNode& node, Range value_heads);

// Whether a norm of heads has a weight for each of several.
bool has_own_norms(const Graph& graph, const GraphNode& node);

// The uses of a value.
struct ValueReaders {
  std::vector<size_t> nodes;  // ascending; one that reads it twice stands here twice
  size_t count = 0;           // the engine's uses, of logits and kept values, included

  // The node that is its only use.
  std::optional<size_t> only() const {
    return count == 1 && nodes.size() == 1 ? std::optional(nodes.front()) : std::nullopt;
  }
};
// Those of all values, by ValueId.
std::vector<ValueReaders> find_readers(const Graph& graph);

// The matrix that the node multiplies its input `input` with (of experts', which are alike, the
// first); kNone: it does something else with it.
WeightId multiplied_weight(const GraphNode& node, ValueId input);

}  // namespace lockstep
