#include "engine/model/architectures/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "engine/model/architectures/expert_mixture.h"
#include "engine/model/architectures/latent_attention.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/architectures/rope.h"

namespace lockstep {
namespace {

struct Shape {
  size_t layers = 0;
  size_t columns = 0;       // of the residual
  size_t feed_forward = 0;  // of a layer without experts
  ExpertMixture mixture;    // or of experts, where there are any
  size_t heads = 0;
  size_t kv_heads = 0;
  size_t head_dimension = 0;   // of queries and keys
  size_t value_dimension = 0;  // of values
  std::optional<LatentAttention> latent_attention = std::nullopt;
  size_t context = 0;
  size_t window = 0;  // most keys that a token sees; 0: all before it
  float epsilon = 0;
  float score_factor = 0;  // of attention
};

Result<void> read_feed_forward(ModelKeys& keys, const std::string& architecture,
                               const DecoderTraits& traits, Shape& shape) {
  const size_t experts = keys.count_or_none("expert_count", kMostColumns);
  const auto read_dense = [&] {
    shape.feed_forward = keys.count("feed_forward_length", {}, kMostColumns);
    return keys.result();
  };
  if (experts == 0 && traits.experts != Presence::kRequired) return read_dense();
  if (!traits.experts) {
    return invalid_input(
        "{}.expert_count is {}: no mixtures of experts of this architecture are known",
        architecture, experts);
  }
  auto mixture = read_expert_mixture(keys, architecture, traits.mixture, shape.layers);
  if (!mixture) return std::unexpected(mixture.error());
  shape.mixture = *mixture;
  for (size_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.mixture.has_experts(layer)) return read_dense();
  }
  return {};
}

// The attention that all heads of a layer make of keys and values of their own, or of latents.
Result<void> read_attention(ModelKeys& keys, const std::string& architecture,
                            const DecoderTraits& traits, Shape& shape) {
  if (traits.has_latent_attention) {
    auto latent = read_latent_attention(keys, architecture, shape.heads);
    if (!latent) return std::unexpected(latent.error());
    shape.latent_attention = *latent;
    shape.head_dimension = latent->own_dimension + latent->rope_dimension;
    return {};
  }
  shape.kv_heads = keys.count("attention.head_count_kv", shape.heads, kMostColumns);
  const uint64_t even_share = shape.columns / shape.heads;
  shape.head_dimension = keys.count("attention.key_length", even_share, kMaxHeadDimension);
  shape.value_dimension =
      keys.count("attention.value_length", shape.head_dimension, kMaxHeadDimension);
  if (auto read = keys.result(); !read) return read;
  if (shape.heads % shape.kv_heads == 0) return {};
  return invalid_input(
      "{}.attention.head_count is {} and head_count_kv {}: the first must be a multiple of the "
      "second",
      architecture, shape.heads, shape.kv_heads);
}

Result<Shape> read_shape(const GgufFile& file, const std::string& architecture,
                         const DecoderTraits& traits) {
  ModelKeys keys(file, architecture);
  Shape shape;
  const size_t blocks = keys.count("block_count", {}, kMostLayers);
  // Blocks that predict further tokens (multi-token prediction) come last.
  const size_t predicting = keys.count_or_none("nextn_predict_layers", kMostLayers);
  shape.layers = blocks - std::min(predicting, blocks);
  shape.columns = keys.count("embedding_length", {}, kMostColumns);
  shape.heads = keys.count("attention.head_count", {}, kMostColumns);
  const auto attention = read_attention(keys, architecture, traits, shape);
  shape.context = keys.count("context_length", {}, kMostContext);
  if (traits.sliding_window) {
    shape.window = keys.count_or_none("attention.sliding_window", kMostContext);
  }
  shape.epsilon = static_cast<float>(keys.number("attention.layer_norm_rms_epsilon", {}));
  const auto feed_forward = read_feed_forward(keys, architecture, traits, shape);
  if (auto result = keys.result(); !result) return std::unexpected(result.error());
  if (!attention) return std::unexpected(attention.error());
  if (!feed_forward) return std::unexpected(feed_forward.error());
  if (shape.layers == 0) {
    return invalid_input("{}.block_count is {} and nextn_predict_layers {}: no layers are left",
                         architecture, blocks, predicting);
  }
  return shape;
}

ValueId add_attention(Graph& graph, ModelTensors& tensors, const Shape& shape,
                      const DecoderTraits& traits, size_t layer, ValueId x) {
  const std::string block = "blk." + std::to_string(layer) + ".";
  const size_t query_columns = shape.heads * shape.head_dimension;
  const size_t key_columns = shape.kv_heads * shape.head_dimension;
  const size_t value_columns = shape.kv_heads * shape.value_dimension;
  const WeightId norm =
      tensors.vector(block + "attn_norm.weight", shape.columns, Presence::kRequired);
  const std::array<ProductName, 3> names = {
      {{"attn_q", query_columns}, {"attn_k", key_columns}, {"attn_v", value_columns}}};
  const std::vector<Product> inputs =
      tensors.products(block, names, "attn_qkv", shape.columns, traits.attention_biases);
  const Product output = tensors.product(block, {"attn_output", shape.columns},
                                         shape.heads * shape.value_dimension, traits.output_bias);
  const WeightId q_norm =
      tensors.vector(block + "attn_q_norm.weight", shape.head_dimension, traits.head_norms);
  const WeightId k_norm =
      tensors.vector(block + "attn_k_norm.weight", shape.head_dimension, traits.head_norms);
  if (tensors.failed()) return x;

  const ValueId h = graph.rms_norm(x, norm, shape.epsilon);
  const auto treat = [&](ValueId value, WeightId head_norm, size_t heads) {
    const bool has_rotary = !traits.has_rotary || traits.has_rotary(layer);
    const auto add_norm = [&] {
      if (head_norm != kNone) value = graph.head_norm(value, head_norm, shape.epsilon, heads);
    };
    if (!traits.head_norms_are_last) add_norm();
    if (has_rotary) value = graph.rotary(value, heads);
    if (traits.head_norms_are_last) add_norm();
    return value;
  };
  const ValueId q = graph.matmul(h, inputs[0].weight, inputs[0].bias);
  const ValueId k = graph.matmul(h, inputs[1].weight, inputs[1].bias);
  const ValueId v = graph.matmul(h, inputs[2].weight, inputs[2].bias);
  const ValueId treated_q = treat(q, q_norm, shape.heads);
  const ValueId treated_k = treat(k, k_norm, shape.kv_heads);
  const ValueId attended =
      graph.attention(layer, treated_q, treated_k, v, shape.heads, shape.kv_heads,
                      {.scale = shape.score_factor, .window = shape.window});
  return graph.add(x, graph.matmul(attended, output.weight, output.bias));
}

ValueId add_latents(Graph& graph, ModelTensors& tensors, const Shape& shape, size_t layer,
                    ValueId x) {
  const std::string block = "blk." + std::to_string(layer) + ".";
  LatentAttention attention = *shape.latent_attention;
  attention.epsilon = shape.epsilon;
  attention.traits = {.scale = shape.score_factor, .window = shape.window};
  const WeightId norm =
      tensors.vector(block + "attn_norm.weight", shape.columns, Presence::kRequired);
  const Product output = tensors.product(block, {"attn_output", shape.columns},
                                         attention.heads * attention.value_dimension);
  if (tensors.failed()) return x;
  const ValueId h = graph.rms_norm(x, norm, shape.epsilon);
  const ValueId attended = add_latent_attention(graph, tensors, attention, block, layer, h);
  if (tensors.failed()) return x;
  return graph.add(x, graph.matmul(attended, output.weight, output.bias));
}

// The same for all tokens; `h` is the normed residual. Returns what is to be added to the residual.
ValueId add_dense_feed_forward(Graph& graph, ModelTensors& tensors, const Shape& shape,
                               const std::string& block, ValueId h) {
  const std::array<ProductName, 2> names = {
      {{"ffn_gate", shape.feed_forward}, {"ffn_up", shape.feed_forward}}};
  const std::vector<Product> inputs = tensors.products(block, names, "ffn_up", shape.columns);
  const Product down = tensors.product(block, {"ffn_down", shape.columns}, shape.feed_forward);
  if (tensors.failed()) return h;

  const ValueId gated = graph.matmul(h, inputs[0].weight, inputs[0].bias);
  const ValueId raised = graph.matmul(h, inputs[1].weight, inputs[1].bias);
  return graph.matmul(graph.gate(ActivationFunction::kSilu, gated, raised), down.weight, down.bias);
}

ValueId add_feed_forward(Graph& graph, ModelTensors& tensors, const Shape& shape,
                         const DecoderTraits& traits, size_t layer, ValueId x) {
  const std::string block = "blk." + std::to_string(layer) + ".";
  const std::string norm_name = fmt::format("{}{}.weight", block, traits.feed_forward_norm);
  const WeightId norm = tensors.vector(norm_name, shape.columns, Presence::kRequired);
  if (tensors.failed()) return x;

  const ValueId h = graph.rms_norm(x, norm, shape.epsilon);
  return graph.add(x, shape.mixture.has_experts(layer)
                          ? add_expert_mixture(graph, tensors, shape.mixture, block, h)
                          : add_dense_feed_forward(graph, tensors, shape, block, h));
}

}  // namespace

Result<Model> build_decoder(const ModelSource& source, const DecoderTraits& traits) {
  const GgufFile& file = source.file;
  Model model;
  model.architecture = file.text("general.architecture")->value_or("");
  auto shape = read_shape(file, model.architecture, traits);
  if (!shape) return std::unexpected(shape.error());
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) return invalid_input("tensor token_embd.weight is missing");
  model.vocabulary_size = embedding->rows();
  model.trained_context_tokens = shape->context;

  model.layer_count = shape->layers;
  auto rope = read_rope(
      file, model.architecture,
      {.pairs = traits.rotary_pairs,
       .head_dimension = shape->latent_attention ? shape->latent_attention->rope_dimension
                                                 : shape->head_dimension,
       .trained_context = shape->context,
       .context_tokens = source.context_tokens != 0 ? source.context_tokens : shape->context});
  if (!rope) return std::unexpected(rope.error());
  shape->score_factor =
      static_cast<float>(rope->score_factor) / std::sqrt(static_cast<float>(shape->head_dimension));
  Graph& graph = model.graph;
  graph.add_rotary(std::move(rope->rotary));

  ModelTensors tensors(file, graph);
  const WeightId table = tensors.table("token_embd.weight", model.vocabulary_size, shape->columns);
  if (tensors.failed()) return std::unexpected(tensors.result().error());
  ValueId x = graph.embed(table);
  for (size_t layer = 0; layer < shape->layers && !tensors.failed(); ++layer) {
    x = shape->latent_attention ? add_latents(graph, tensors, *shape, layer, x)
                                : add_attention(graph, tensors, *shape, traits, layer, x);
    x = add_feed_forward(graph, tensors, *shape, traits, layer, x);
  }
  const WeightId norm = tensors.vector("output_norm.weight", shape->columns, Presence::kRequired);
  const WeightId output =
      tensors.has("output.weight")
          ? tensors.matrix("output.weight", model.vocabulary_size, shape->columns)
          : table;
  if (auto result = tensors.result(); !result) return std::unexpected(result.error());
  model.scale_tensors = tensors.scale_tensors();
  graph.set_logits(
      graph.matmul(graph.rms_norm(graph.select_rows(x), norm, shape->epsilon), output));
  return model;
}

}  // namespace lockstep
