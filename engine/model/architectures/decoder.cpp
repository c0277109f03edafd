#include "engine/model/architectures/decoder.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "engine/model/architectures/expert_mixture.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/in_quotes.h"
#include "engine/model/tensor_reader.h"

namespace lockstep {
namespace {

struct Shape {
  size_t layers = 0;
  size_t columns = 0;       // of the residual
  size_t feed_forward = 0;  // of a layer without experts
  ExpertMixture mixture;    // or of experts, where there are any
  size_t heads = 0;
  size_t kv_heads = 0;
  size_t head_dimension = 0;
  size_t rotary_dimensions = 0;
  size_t context = 0;
  size_t window = 0;  // most keys that a token sees; 0: all before it
  float epsilon = 0;
  double rotary_base = 0;
  double rotary_factor = 1;  // positions are divided by it
};

Result<void> read_feed_forward(ModelKeys& keys, const std::string& architecture,
                               const DecoderTraits& traits, Shape& shape) {
  const size_t experts = keys.count_or_none("expert_count", kMostColumns);
  if (experts == 0 && traits.experts != Presence::kRequired) {
    shape.feed_forward = keys.count("feed_forward_length", {}, kMostColumns);
    return keys.result();
  }
  if (!traits.experts) {
    return invalid_input(
        "{}.expert_count is {}: no mixtures of experts of this architecture are known",
        architecture, experts);
  }
  auto mixture = read_expert_mixture(keys, architecture, shape.layers);
  if (!mixture) return std::unexpected(mixture.error());
  shape.mixture = *mixture;
  return {};
}

Result<Shape> read_shape(const GgufFile& file, const std::string& architecture,
                         const DecoderTraits& traits) {
  ModelKeys keys(file, architecture);
  Shape shape;
  shape.layers = keys.count("block_count", {}, kMostLayers);
  shape.columns = keys.count("embedding_length", {}, kMostColumns);
  shape.heads = keys.count("attention.head_count", {}, kMostColumns);
  shape.kv_heads = keys.count("attention.head_count_kv", shape.heads, kMostColumns);
  const uint64_t even_share = shape.columns / shape.heads;
  shape.head_dimension = keys.count("attention.key_length", even_share, kMaxHeadDimension);
  const size_t value_dimension =
      keys.count("attention.value_length", shape.head_dimension, kMaxHeadDimension);
  shape.rotary_dimensions =
      keys.count("rope.dimension_count", shape.head_dimension, kMaxHeadDimension);
  shape.context = keys.count("context_length", {}, kMostContext);
  if (traits.sliding_window) {
    shape.window = keys.count_or_none("attention.sliding_window", kMostContext);
  }
  shape.epsilon = static_cast<float>(keys.number("attention.layer_norm_rms_epsilon", {}));
  shape.rotary_base = keys.number("rope.freq_base", 10000.0);
  const std::string scaling = keys.text("rope.scaling.type");
  const double old_factor = keys.factor("rope.scale_linear", 1.0);
  shape.rotary_factor = keys.factor("rope.scaling.factor", old_factor);
  const auto feed_forward = read_feed_forward(keys, architecture, traits, shape);
  if (auto result = keys.result(); !result) return std::unexpected(result.error());
  if (!feed_forward) return std::unexpected(feed_forward.error());

  if (!scaling.empty() && scaling != "none" && scaling != "linear") {
    return invalid_input("{}.rope.scaling.type is {}; known are none and linear", architecture,
                         in_quotes(scaling));
  }
  if (scaling == "none") shape.rotary_factor = 1;
  if (shape.heads % shape.kv_heads != 0 || shape.heads / shape.kv_heads > kMaxQueryGroup) {
    return invalid_input(
        "{}.attention.head_count is {} and head_count_kv {}: the first must be a multiple of the "
        "second, at most {} times it",
        architecture, shape.heads, shape.kv_heads, kMaxQueryGroup);
  }
  if (value_dimension != shape.head_dimension) {
    return invalid_input("{}.attention.value_length is {} and key_length {}: they must be equal",
                         architecture, value_dimension, shape.head_dimension);
  }
  if (shape.rotary_dimensions > shape.head_dimension || shape.rotary_dimensions % 2 != 0) {
    return invalid_input("{}.rope.dimension_count is {}; it must be even and at most {}",
                         architecture, shape.rotary_dimensions, shape.head_dimension);
  }
  return shape;
}

// Base frequencies, divided by the linear factor and by the file's factor per pair (Llama 3.1).
Result<Rotary> read_rotary(const GgufFile& file, const Shape& shape, RotaryPairs pairs) {
  Rotary rotary;
  rotary.pairs = pairs;
  const size_t count = shape.rotary_dimensions / 2;
  std::vector<float> factors(count, 1.0F);
  if (const GgufTensor* tensor = file.find_tensor("rope_freqs.weight"); tensor != nullptr) {
    if (tensor->rows() != 1 || tensor->columns() != count) {
      return invalid_input("tensor rope_freqs.weight has {} rows of {}; expected 1 of {}",
                           tensor->rows(), tensor->columns(), count);
    }
    auto values = read_tensor(file, *tensor);
    if (!values) return std::unexpected(values.error());
    factors = std::move(*values);
  }
  for (size_t pair = 0; pair < count; ++pair) {
    if (!std::isfinite(factors[pair]) || factors[pair] <= 0) {
      return invalid_input("rope_freqs.weight holds {} at {}; it must be above 0", factors[pair],
                           pair);
    }
    const double exponent =
        -2.0 * static_cast<double>(pair) / static_cast<double>(shape.rotary_dimensions);
    rotary.frequencies.push_back(std::pow(shape.rotary_base, exponent) / shape.rotary_factor /
                                 static_cast<double>(factors[pair]));
  }
  return rotary;
}

ValueId add_attention(Graph& graph, ModelTensors& tensors, const Shape& shape,
                      const DecoderTraits& traits, size_t layer, ValueId x) {
  const std::string block = "blk." + std::to_string(layer) + ".";
  const size_t query_columns = shape.heads * shape.head_dimension;
  const size_t kv_columns = shape.kv_heads * shape.head_dimension;
  const Presence biases = traits.attention_biases;
  const WeightId norm =
      tensors.vector(block + "attn_norm.weight", shape.columns, Presence::kRequired);
  const WeightId wq = tensors.matrix(block + "attn_q.weight", query_columns, shape.columns);
  const WeightId wk = tensors.matrix(block + "attn_k.weight", kv_columns, shape.columns);
  const WeightId wv = tensors.matrix(block + "attn_v.weight", kv_columns, shape.columns);
  const WeightId wo = tensors.matrix(block + "attn_output.weight", shape.columns, query_columns);
  const WeightId bq = tensors.vector(block + "attn_q.bias", query_columns, biases);
  const WeightId bk = tensors.vector(block + "attn_k.bias", kv_columns, biases);
  const WeightId bv = tensors.vector(block + "attn_v.bias", kv_columns, biases);
  const WeightId bo =
      tensors.vector(block + "attn_output.bias", shape.columns, Presence::kOptional);
  const WeightId q_norm =
      tensors.vector(block + "attn_q_norm.weight", shape.head_dimension, traits.head_norms);
  const WeightId k_norm =
      tensors.vector(block + "attn_k_norm.weight", shape.head_dimension, traits.head_norms);
  if (tensors.failed()) return x;

  const ValueId h = graph.rms_norm(x, norm, shape.epsilon);
  ValueId q = graph.matmul(h, wq, bq);
  ValueId k = graph.matmul(h, wk, bk);
  const ValueId v = graph.matmul(h, wv, bv);
  if (q_norm != kNone) q = graph.head_norm(q, q_norm, shape.epsilon, shape.heads);
  if (k_norm != kNone) k = graph.head_norm(k, k_norm, shape.epsilon, shape.kv_heads);
  q = graph.rotary(q, shape.heads);
  k = graph.rotary(k, shape.kv_heads);
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dimension));
  const ValueId attended =
      graph.attention(layer, q, k, v, shape.heads, shape.kv_heads, scale, shape.window);
  return graph.add(x, graph.matmul(attended, wo, bo));
}

// The same for all tokens; `h` is the normed residual. Returns what is to be added to the residual.
ValueId add_dense_feed_forward(Graph& graph, ModelTensors& tensors, const Shape& shape,
                               const std::string& block, ValueId h) {
  const WeightId gate =
      tensors.matrix(block + "ffn_gate.weight", shape.feed_forward, shape.columns);
  const WeightId up = tensors.matrix(block + "ffn_up.weight", shape.feed_forward, shape.columns);
  const WeightId down =
      tensors.matrix(block + "ffn_down.weight", shape.columns, shape.feed_forward);
  if (tensors.failed()) return h;

  const ValueId gated = graph.matmul(h, gate);
  const ValueId raised = graph.matmul(h, up);
  return graph.matmul(graph.silu_multiply(gated, raised), down);
}

ValueId add_feed_forward(Graph& graph, ModelTensors& tensors, const Shape& shape, size_t layer,
                         ValueId x) {
  const std::string block = "blk." + std::to_string(layer) + ".";
  const WeightId norm =
      tensors.vector(block + "ffn_norm.weight", shape.columns, Presence::kRequired);
  if (tensors.failed()) return x;

  const ValueId h = graph.rms_norm(x, norm, shape.epsilon);
  return graph.add(x, shape.mixture.experts > 0
                          ? add_expert_mixture(graph, tensors, shape.mixture, block, h)
                          : add_dense_feed_forward(graph, tensors, shape, block, h));
}

}  // namespace

Result<Model> build_decoder(const GgufFile& file, const DecoderTraits& traits) {
  Model model;
  model.architecture = file.text("general.architecture")->value_or("");
  const auto shape = read_shape(file, model.architecture, traits);
  if (!shape) return std::unexpected(shape.error());
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) return invalid_input("tensor token_embd.weight is missing");
  model.vocabulary_size = embedding->rows();
  model.trained_context_tokens = shape->context;

  auto rotary = read_rotary(file, *shape, traits.rotary_pairs);
  if (!rotary) return std::unexpected(rotary.error());
  Graph& graph = model.graph;
  graph.set_rotary(std::move(*rotary));

  ModelTensors tensors(file, graph);
  const WeightId table = tensors.matrix("token_embd.weight", model.vocabulary_size, shape->columns);
  if (tensors.failed()) return std::unexpected(tensors.result().error());
  ValueId x = graph.embed(table);
  for (size_t layer = 0; layer < shape->layers && !tensors.failed(); ++layer) {
    x = add_attention(graph, tensors, *shape, traits, layer, x);
    x = add_feed_forward(graph, tensors, *shape, layer, x);
  }
  const WeightId norm = tensors.vector("output_norm.weight", shape->columns, Presence::kRequired);
  const WeightId output =
      tensors.has("output.weight")
          ? tensors.matrix("output.weight", model.vocabulary_size, shape->columns)
          : table;
  if (auto result = tensors.result(); !result) return std::unexpected(result.error());
  graph.set_logits(
      graph.matmul(graph.rms_norm(graph.select_rows(x), norm, shape->epsilon), output));
  return model;
}

}  // namespace lockstep
