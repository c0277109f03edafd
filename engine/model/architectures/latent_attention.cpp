#include "engine/model/architectures/latent_attention.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "engine/kernels/attention.h"

namespace lockstep {
namespace {

// The queries of all heads: the columns without positions, and those with them, rotated.
struct Queries {
  ValueId own = kNone;
  ValueId rotated = kNone;
};
Queries add_queries(Graph& graph, ModelTensors& tensors, const LatentAttention& shape,
                    const std::string& block, ValueId h) {
  const size_t columns = graph.columns(h);
  const size_t dimension = shape.own_dimension + shape.rope_dimension;
  const size_t rows = shape.heads * dimension;
  ValueId all = kNone;
  if (shape.query_latent == 0) {
    const WeightId matrix = tensors.matrix(block + "attn_q.weight", rows, columns);
    if (tensors.failed()) return {};
    all = graph.matmul(h, matrix);
  } else {
    const size_t latent = shape.query_latent;
    const WeightId down = tensors.matrix(block + "attn_q_a.weight", latent, columns);
    const WeightId norm =
        tensors.vector(block + "attn_q_a_norm.weight", latent, Presence::kRequired);
    const WeightId up = tensors.matrix(block + "attn_q_b.weight", rows, latent);
    if (tensors.failed()) return {};
    all = graph.matmul(graph.rms_norm(graph.matmul(h, down), norm, shape.epsilon), up);
  }
  const ValueId own = graph.slice_heads(all, shape.heads, 0, shape.own_dimension);
  const ValueId rotated =
      graph.slice_heads(all, shape.heads, shape.own_dimension, shape.rope_dimension);
  return {own, shape.is_rotated ? graph.rotary(rotated, shape.heads) : rotated};
}

// A token's latent, and the rotated dimensions of its key.
struct Latent {
  ValueId latent = kNone;
  ValueId rotated = kNone;
};
Latent add_latent(Graph& graph, ModelTensors& tensors, const LatentAttention& shape,
                  const std::string& block, ValueId h) {
  const WeightId matrix = tensors.matrix(block + "attn_kv_a_mqa.weight",
                                         shape.latent + shape.rope_dimension, graph.columns(h));
  const WeightId norm =
      tensors.vector(block + "attn_kv_a_norm.weight", shape.latent, Presence::kRequired);
  if (tensors.failed()) return {};
  const ValueId all = graph.matmul(h, matrix);
  const ValueId latent = graph.slice_heads(all, 1, 0, shape.latent);
  const ValueId rotated = graph.slice_heads(all, 1, shape.latent, shape.rope_dimension);
  return {graph.rms_norm(latent, norm, shape.epsilon),
          shape.is_rotated ? graph.rotary(rotated, 1) : rotated};
}

}  // namespace

Result<LatentAttention> read_latent_attention(ModelKeys& keys, const std::string& architecture,
                                              size_t heads, size_t even_share) {
  LatentAttention shape;
  shape.heads = heads;
  shape.latent = keys.count("attention.kv_lora_rank", {}, kMaxHeadDimension);
  shape.query_latent = keys.count_or_none("attention.q_lora_rank", kMostColumns);
  shape.rope_dimension = keys.count("rope.dimension_count", {}, kMaxHeadDimension);
  // In older files the lengths of a cache without latents, which are the heads' own.
  const size_t key_length = keys.count_or_none("attention.key_length", kMaxHeadDimension);
  const size_t value_length =
      keys.count("attention.value_length", std::max<size_t>(1, even_share), kMaxHeadDimension);
  const size_t dimension = keys.count("attention.key_length_mla", key_length, kMaxHeadDimension);
  shape.value_dimension = keys.count("attention.value_length_mla", value_length, kMaxHeadDimension);
  if (auto read = keys.result(); !read) return std::unexpected(read.error());
  if (dimension <= shape.rope_dimension) {
    return invalid_input(
        "{}.attention.key_length_mla is {} and rope.dimension_count {}: keys have dimensions "
        "without positions too",
        architecture, dimension, shape.rope_dimension);
  }
  shape.own_dimension = dimension - shape.rope_dimension;
  const std::array<std::pair<std::string_view, size_t>, 3> blocks = {
      {{"attention.kv_lora_rank", shape.latent},
       {"attention.key_length_mla without rope.dimension_count", shape.own_dimension},
       {"attention.value_length_mla", shape.value_dimension}}};
  for (const auto& [key, value] : blocks) {
    if (value % kHeadBlock == 0) continue;
    return invalid_input("{}.{} is {}; known are multiples of {}", architecture, key, value,
                         kHeadBlock);
  }
  if (shape.latent + shape.rope_dimension > kMaxHeadDimension) {
    return invalid_input(
        "{}.attention.kv_lora_rank is {} and rope.dimension_count {}; together they may be {}",
        architecture, shape.latent, shape.rope_dimension, kMaxHeadDimension);
  }
  return shape;
}

ValueId add_latent_attention(Graph& graph, ModelTensors& tensors, const LatentAttention& shape,
                             const std::string& block, size_t layer, ValueId h) {
  const size_t heads = shape.heads;
  const size_t latent = shape.latent;
  const size_t own = shape.own_dimension;
  const size_t value = shape.value_dimension;
  const AttentionTraits& traits = shape.traits;
  const Queries queries = add_queries(graph, tensors, shape, block, h);
  const Latent stored = add_latent(graph, tensors, shape, block, h);
  const auto joined = [&](ValueId own_columns) {
    const ValueId all = graph.join_heads(own_columns, heads, queries.rotated, heads);
    return shape.temperature ? graph.temperature(all, *shape.temperature) : all;
  };
  const std::string both = block + "attn_kv_b.weight";
  if (tensors.has(both)) {
    const WeightId matrix = tensors.matrix(both, heads * (own + value), latent);
    if (tensors.failed()) return h;
    const ValueId all = graph.matmul(stored.latent, matrix);
    const ValueId own_keys = graph.slice_heads(all, heads, 0, own);
    const ValueId values = graph.slice_heads(all, heads, own, value);
    return graph.attention(layer, joined(queries.own),
                           graph.join_heads(own_keys, heads, stored.rotated, 1), values, heads,
                           heads, traits);
  }
  const WeightId key_matrix =
      tensors.matrix_of_heads(block + "attn_k_b.weight", heads, latent, own);
  const WeightId value_matrix =
      tensors.matrix_of_heads(block + "attn_v_b.weight", heads, value, latent);
  if (tensors.failed()) return h;
  const ValueId absorbed = graph.head_matmul(queries.own, key_matrix, heads);
  const ValueId attended = graph.latent_attention(
      layer, joined(absorbed), graph.join_heads(stored.latent, 1, stored.rotated, 1), heads, 1,
      latent, traits);
  return graph.head_matmul(attended, value_matrix, heads);
}

}  // namespace lockstep
