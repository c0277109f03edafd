#include "engine/model/architectures/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model/architectures/decoder_shape.h"
#include "engine/model/architectures/expert_mixture.h"
#include "engine/model/architectures/latent_attention.h"
#include "engine/model/architectures/ranking_head.h"
#include "engine/model/architectures/rope.h"

namespace lockstep {
namespace {

constexpr const char* kTable = "token_embd.weight";
constexpr const char* kOutput = "output.weight";

// The graph's tables of rotary positions.
struct RotaryTables {
  size_t usual = 0;
  size_t windowed = 0;  // of layers with a window
};

class DecoderBuilder {
 public:
  DecoderBuilder(const DecoderTraits& traits, const DecoderShape& shape, const RotaryTables& tables,
                 ModelTensors& tensors, Graph& graph)
      : traits_(traits), shape_(shape), tables_(tables), tensors_(tensors), graph_(graph) {}

  ValueId norm(const std::string& name, ValueId x);
  ValueId scale(ValueId x, float factor) { return factor == 1 ? x : graph_.scale(x, factor); }
  // Each token's embeddings for all layers, of which x is the usual one.
  void embed_by_layer(ValueId x, size_t vocabulary);
  ValueId add_layer(ValueId x, size_t layer);
  // `output`: the matrix, which the model's embeddings may have as well.
  ValueId add_logits(ValueId x, WeightId output, size_t vocabulary);
  // A block that predicts further tokens: gives the logits of what follows.
  ValueId add_predicting_block(size_t vocabulary);

 private:
  bool has_rotary(size_t layer) const;
  ValueId last_norm(const std::string& block, ValueId x);
  std::string block_of(size_t layer) const {
    return fmt::format("blk.{}.", shape_.first_block + layer);
  }
  // A norm of a layer by its tensor's name; without a name x itself.
  ValueId layer_norm(const std::string& block, std::string_view name, ValueId x);
  ValueId head_norm(const std::string& name, ValueId x, size_t heads, bool is_rotated);
  ValueId treat_heads(const std::string& norm, ValueId x, size_t heads, size_t layer);
  std::vector<Product> attention_inputs(const std::string& block, size_t layer, size_t columns);
  ValueId attend(const std::string& block, size_t layer, ValueId h,
                 const std::vector<Product>& inputs);
  ValueId attend_latents(const std::string& block, size_t layer, ValueId h);
  ValueId add_attention(const std::string& block, size_t layer, ValueId h);
  ValueId add_convolution(const std::string& block, ValueId h);
  ValueId add_mixer(const std::string& block, size_t layer, ValueId h);
  ValueId add_dense_feed_forward(const std::string& block, size_t layer, ValueId h);
  ValueId add_feed_forward(const std::string& block, size_t layer, const MixtureInputs& inputs);
  ValueId add_parts(const std::string& block, size_t layer, ValueId x);
  ValueId add_layer_embedding(const std::string& block, size_t layer, ValueId x);
  AttentionTraits attention_traits(const std::string& block, size_t layer);

  const DecoderTraits& traits_;
  const DecoderShape& shape_;
  const RotaryTables& tables_;
  ModelTensors& tensors_;
  Graph& graph_;
  ValueId layer_embeddings_ = kNone;
  std::vector<ValueId> attended_ = std::vector<ValueId>(shape_.layers.size(), kNone);  // by layer
};

bool DecoderBuilder::has_rotary(size_t layer) const {
  if (traits_.alibi_bias != 0) return false;
  const bool is_alone = shape_.window > 0 && traits_.window.rotates_alone;
  return (traits_.has_rotary == nullptr || traits_.has_rotary(layer)) &&
         (shape_.layers[layer].has_window || !is_alone);
}

ValueId DecoderBuilder::norm(const std::string& name, ValueId x) {
  const size_t columns = graph_.columns(x);
  if (traits_.norm == NormKind::kPlainLayer) {
    return graph_.layer_norm(x, kNone, kNone, shape_.epsilon);
  }
  const bool is_rms = traits_.norm == NormKind::kRms;
  // Falcon-H1's files name a norm by itself.
  const WeightId weight =
      tensors_.vector(tensors_.has(name) ? name : name + ".weight", columns, Presence::kRequired);
  const WeightId bias =
      is_rms ? kNone : tensors_.vector(name + ".bias", columns, Presence::kOptional);
  if (tensors_.failed()) return x;
  return is_rms ? graph_.rms_norm(x, weight, shape_.epsilon)
                : graph_.layer_norm(x, weight, bias, shape_.epsilon);
}

ValueId DecoderBuilder::layer_norm(const std::string& block, std::string_view name, ValueId x) {
  return name.empty() ? x : norm(block + std::string(name), x);
}

ValueId DecoderBuilder::head_norm(const std::string& name, ValueId x, size_t heads,
                                  bool is_rotated) {
  const HeadNormTraits& norms = traits_.head_norms;
  const float epsilon = shape_.epsilon;
  const size_t columns = graph_.columns(x);
  const std::string tensor = name + ".weight";
  switch (norms.weights) {
    case HeadNormWeights::kUnweighted:
      return is_rotated ? graph_.head_norm(x, kNone, epsilon, heads) : x;
    case HeadNormWeights::kWhole: {
      const WeightId weight = tensors_.vector(tensor, columns, norms.presence);
      return weight == kNone ? x : graph_.rms_norm(x, weight, epsilon);
    }
    case HeadNormWeights::kShared: {
      const WeightId weight = tensors_.vector(tensor, columns / heads, norms.presence);
      return weight == kNone ? x : graph_.head_norm(x, weight, epsilon, heads);
    }
    case HeadNormWeights::kOwn:
    case HeadNormWeights::kOwnRms: {
      const WeightId weight =
          tensors_.vector_of_heads(tensor, heads, columns / heads, norms.presence);
      if (weight == kNone) return x;
      return norms.weights == HeadNormWeights::kOwn
                 ? graph_.head_layer_norm(x, weight, epsilon, heads)
                 : graph_.head_norm(x, weight, epsilon, heads);
    }
  }
  return x;
}

// The norm and the positions of queries or keys.
ValueId DecoderBuilder::treat_heads(const std::string& norm, ValueId x, size_t heads,
                                    size_t layer) {
  const bool is_rotated = has_rotary(layer);
  const bool is_windowed = shape_.layers[layer].has_window;
  if (!traits_.head_norms.are_last) x = head_norm(norm, x, heads, is_rotated);
  if (is_rotated) x = graph_.rotary(x, heads, is_windowed ? tables_.windowed : tables_.usual);
  if (traits_.head_norms.are_last) x = head_norm(norm, x, heads, is_rotated);
  return x;
}

AttentionTraits DecoderBuilder::attention_traits(const std::string& block, size_t layer) {
  const LayerShape& sizes = shape_.layers[layer];
  WeightId sinks = kNone;
  if (traits_.sinks) {
    sinks = tensors_.vector(block + "attn_sinks.weight", sizes.heads, *traits_.sinks);
  }
  AttentionTraits attention = {.scale = sizes.score_factor,
                               .score_cap = shape_.score_cap,
                               .alibi_bias = traits_.alibi_bias,
                               .sinks = sinks};
  const bool is_section = traits_.window.kind == WindowKind::kSection;
  if (sizes.has_window) (is_section ? attention.section : attention.window) = shape_.window;
  if (traits_.is_encoder && attention.window == 0) attention.ahead = kAllAhead;
  if (traits_.is_encoder && attention.window != 0) {
    attention.ahead = attention.window / 2;
    attention.window = attention.ahead + 1;
  }
  return attention;
}

// The products that make queries, keys and values: of a layer that reads an earlier one's keys and
// values the first alone, and without the last where values are keys.
std::vector<Product> DecoderBuilder::attention_inputs(const std::string& block, size_t layer,
                                                      size_t columns) {
  const LayerShape& sizes = shape_.layers[layer];
  const size_t parts = traits_.has_query_gates ? 2 : 1;
  const std::array<ProductName, 3> names = {{{"attn_q", parts * sizes.heads * sizes.head_dimension},
                                             {"attn_k", sizes.kv_heads * sizes.head_dimension},
                                             {"attn_v", sizes.kv_heads * sizes.value_dimension}}};
  const bool is_fused = tensors_.has(block + "attn_qkv.weight");
  size_t count = names.size();
  if (sizes.stored_by != layer) {
    count = 1;
    for (const char* const unused : {"attn_k", "attn_v"}) {
      tensors_.leave_out(block + unused, "keys and values of layers that read earlier ones'");
    }
  } else if (traits_.may_share_keys && !is_fused && !tensors_.has(block + "attn_v.weight") &&
             sizes.value_dimension == sizes.head_dimension) {
    count = 2;
  }
  return tensors_.products(block, names, "attn_qkv", columns, traits_.attention_biases, count);
}

// Attention of heads with keys and values of their own, or of an earlier layer; `inputs`: what
// attention_inputs() gives.
ValueId DecoderBuilder::attend(const std::string& block, size_t layer, ValueId h,
                               const std::vector<Product>& inputs) {
  const LayerShape& sizes = shape_.layers[layer];
  const float bound = shape_.input_bound;
  std::vector<ValueId> made;
  for (const Product& input : inputs) {
    const ValueId product = graph_.matmul(h, input.weight, input.bias);
    made.push_back(bound == 0 ? product : graph_.clamp(product, bound));
  }
  ValueId open = kNone;  // what gates the heads' results
  if (traits_.has_query_gates) {
    const size_t dimension = sizes.head_dimension;
    const ValueId both = made.front();
    made.front() = graph_.slice_heads(both, sizes.heads, 0, dimension);
    open = graph_.slice_heads(both, sizes.heads, dimension, dimension);
  }
  ValueId queries = treat_heads(block + "attn_q_norm", made.front(), sizes.heads, layer);
  const bool has_temperature =
      shape_.temperature && !(traits_.temperature->is_unrotated && has_rotary(layer));
  if (has_temperature) queries = graph_.temperature(queries, *shape_.temperature);
  const AttentionTraits traits = attention_traits(block, layer);
  if (tensors_.failed()) return h;
  if (sizes.stored_by != layer) {
    return graph_.attention_over(layer, attended_[sizes.stored_by], queries, traits);
  }
  const ValueId keys = treat_heads(block + "attn_k_norm", made[1], sizes.kv_heads, layer);
  ValueId values = made.back();
  if (traits_.head_norms.of_values) {
    values = graph_.head_norm(values, kNone, shape_.epsilon, sizes.kv_heads);
  }
  if (tensors_.failed()) return h;
  attended_[layer] =
      graph_.attention(layer, queries, keys, values, sizes.heads, sizes.kv_heads, traits);
  return open == kNone ? attended_[layer]
                       : graph_.gate(ActivationFunction::kSigmoid, open, attended_[layer]);
}

ValueId DecoderBuilder::attend_latents(const std::string& block, size_t layer, ValueId h) {
  LatentAttention latent = *shape_.latent_attention;
  latent.epsilon = shape_.epsilon;
  latent.is_rotated = has_rotary(layer);
  latent.traits = attention_traits(block, layer);
  latent.temperature = shape_.temperature;
  if (traits_.has_indexer) {
    tensors_.leave_out(block + "indexer.",
                       "the indexer of attention, which leaves out no key of so short a context");
  }
  return add_latent_attention(graph_, tensors_, latent, block, layer, h);
}

// Returns what is to be added to the residual, but for a norm behind it.
ValueId DecoderBuilder::add_attention(const std::string& block, size_t layer, ValueId h) {
  const LayerShape& sizes = shape_.layers[layer];
  const size_t columns = graph_.columns(h);
  const bool is_product = sizes.kv_heads == 0;  // in the place of attention
  std::vector<Product> inputs;
  if (!shape_.latent_attention && !is_product) inputs = attention_inputs(block, layer, columns);
  const size_t attended_columns = is_product ? columns : sizes.heads * sizes.value_dimension;
  const Product output =
      tensors_.product(block, {"attn_output", columns}, attended_columns, traits_.output_bias);
  if (tensors_.failed()) return h;
  ValueId attended = h;
  if (!is_product) {
    attended =
        shape_.latent_attention ? attend_latents(block, layer, h) : attend(block, layer, h, inputs);
  }
  if (tensors_.failed()) return h;
  return scale(graph_.matmul(attended, output.weight, output.bias), shape_.value_factor);
}

// Attention, what stands in its place, or both.
ValueId DecoderBuilder::add_mixer(const std::string& block, size_t layer, ValueId h) {
  const LayerShape& sizes = shape_.layers[layer];
  if (sizes.has_state_space) {
    const ValueId y = add_state_space(graph_, tensors_, *shape_.state_space, block, h);
    if (sizes.heads == 0 || tensors_.failed()) return y;
    return graph_.add(add_attention(block, layer, h), y);
  }
  if (sizes.has_delta_net) return add_delta_net(graph_, tensors_, *shape_.delta_net, block, h);
  const bool convolves = traits_.has_convolutions && sizes.kv_heads == 0;
  return convolves ? add_convolution(block, h) : add_attention(block, layer, h);
}

// In the place of attention. The rows of the first matrix are, in this order, of what gates the
// convolution's input, of what gates its output, and of the input.
ValueId DecoderBuilder::add_convolution(const std::string& block, ValueId h) {
  const size_t columns = graph_.columns(h);
  const std::array<ProductName, 3> names = {{{"", columns}, {"", columns}, {"", columns}}};
  const std::vector<Product> inputs = tensors_.products(block, names, "shortconv.in_proj", columns);
  const WeightId factors = tensors_.vector_of_heads(block + "shortconv.conv.weight", columns,
                                                    shape_.convolved, Presence::kRequired);
  const WeightId bias =
      tensors_.vector(block + "shortconv.conv.bias", columns, Presence::kOptional);
  const Product output = tensors_.product(block, {"shortconv.out_proj", columns}, columns);
  if (tensors_.failed()) return h;
  std::vector<ValueId> made;
  for (const Product& input : inputs) made.push_back(graph_.matmul(h, input.weight, input.bias));
  const ValueId y = graph_.convolve_gated(made[2], made[0], made[1], factors, bias);
  return graph_.matmul(y, output.weight, output.bias);
}

ValueId DecoderBuilder::add_dense_feed_forward(const std::string& block, size_t layer, ValueId h) {
  const size_t columns = graph_.columns(h);
  const size_t wide = shape_.layers[layer].feed_forward;
  std::vector<Product> inputs;
  if (traits_.is_gated) {
    const std::array<ProductName, 2> names = {{{"ffn_gate", wide}, {"ffn_up", wide}}};
    inputs = tensors_.products(block, names, "ffn_up", columns);
  } else {
    inputs.push_back(tensors_.product(block, {"ffn_up", wide}, columns));
  }
  const Product down = tensors_.product(block, {"ffn_down", columns}, wide);
  if (tensors_.failed()) return h;
  const Activation& activation = shape_.layers[layer].activation;
  std::vector<ValueId> values;
  for (const Product& input : inputs) values.push_back(graph_.matmul(h, input.weight, input.bias));
  const ValueId activated = traits_.is_gated ? graph_.gate(activation, values[0], values[1])
                                             : graph_.activation(activation, values[0]);
  return graph_.matmul(activated, down.weight, down.bias);
}

// Without experts, of experts, or of both.
ValueId DecoderBuilder::add_feed_forward(const std::string& block, size_t layer,
                                         const MixtureInputs& inputs) {
  if (!shape_.layers[layer].has_experts) {
    return add_dense_feed_forward(block, layer, inputs.normed);
  }
  ExpertMixture mixture = shape_.mixture;
  mixture.epsilon = shape_.epsilon;
  if (!traits_.beside) return add_expert_mixture(graph_, tensors_, mixture, block, inputs);
  const BesideTraits& beside = *traits_.beside;
  const ValueId dense =
      layer_norm(block, beside.behind_dense, add_dense_feed_forward(block, layer, inputs.normed));
  MixtureInputs others = inputs;
  const ValueId read = beside.reads_layer_input ? inputs.layer : inputs.residual;
  others.normed = layer_norm(block, beside.before_experts, read);
  const ValueId experts = layer_norm(block, beside.behind_experts,
                                     add_expert_mixture(graph_, tensors_, mixture, block, others));
  return tensors_.failed() ? inputs.normed : graph_.add(dense, experts);
}

// Attention and the feed-forward, whichever of them the layer has.
ValueId DecoderBuilder::add_parts(const std::string& block, size_t layer, ValueId x) {
  const LayerNorms& norms = traits_.norms;
  const LayerShape& sizes = shape_.layers[layer];
  const bool is_parallel = traits_.residual == ResidualForm::kParallel;
  const auto finish = [&](std::string_view behind, ValueId y) {
    return scale(layer_norm(block, behind, y), shape_.residual_factor);
  };
  const ValueId input = x;
  ValueId h = x;
  std::vector<ValueId> parts;  // that are still to be added to the residual
  if (sizes.heads > 0 || sizes.has_state_space) {
    const bool is_normed = traits_.has_embedding_norm && layer == 0 &&
                           !tensors_.has(block + std::string(norms.attention) + ".weight");
    h = is_normed ? x : layer_norm(block, norms.attention, x);
    parts.push_back(finish(norms.behind_attention, add_mixer(block, layer, h)));
    if (tensors_.failed()) return x;
    if (!is_parallel) x = graph_.add(x, std::exchange(parts, {}).front());
  }
  if (sizes.has_experts || sizes.feed_forward > 0) {
    const bool shares_norm = is_parallel && norms.feed_forward.empty();
    const ValueId normed = shares_norm ? h : layer_norm(block, norms.feed_forward, x);
    const ValueId fed = add_feed_forward(block, layer, {normed, x, input});
    parts.push_back(finish(norms.behind_feed_forward, fed));
  }
  if (tensors_.failed()) return x;
  for (const ValueId part : parts) x = graph_.add(x, part);
  return x;
}

// Gemma 3n's and 4's: what the usual embedding makes for a layer is added to the layer's own.
void DecoderBuilder::embed_by_layer(ValueId x, size_t vocabulary) {
  const size_t layers = shape_.layers.size();
  const size_t columns = shape_.layer_columns;
  const WeightId table =
      tensors_.matrix_alone("per_layer_token_embd.weight", vocabulary, layers * columns);
  const WeightId matrix =
      tensors_.matrix("per_layer_model_proj.weight", layers * columns, shape_.sizes.columns);
  const WeightId norm = tensors_.vector("per_layer_proj_norm.weight", columns, Presence::kRequired);
  if (tensors_.failed()) return;
  const auto root = [](size_t count) { return std::sqrt(static_cast<float>(count)); };
  const ValueId own = graph_.scale(graph_.embed(table), root(columns));
  const ValueId made = graph_.scale(graph_.matmul(x, matrix), 1 / root(shape_.sizes.columns));
  const ValueId normed = graph_.head_norm(made, norm, shape_.epsilon, layers);
  layer_embeddings_ = graph_.scale(graph_.add(normed, own), 1 / root(2));
}

// The layer's result gates the token's embedding for the layer.
ValueId DecoderBuilder::add_layer_embedding(const std::string& block, size_t layer, ValueId x) {
  const size_t columns = shape_.layer_columns;
  const size_t wide = graph_.columns(x);
  const Product gate = tensors_.product(block, {"inp_gate", columns}, wide);
  const Product output = tensors_.product(block, {"proj", wide}, columns);
  if (tensors_.failed()) return x;
  const ValueId own = graph_.slice_heads(layer_embeddings_, 1, layer * columns, columns);
  const ValueId gated =
      graph_.gate(shape_.layers[layer].activation, graph_.matmul(x, gate.weight, gate.bias), own);
  const ValueId made = norm(block + "post_norm", graph_.matmul(gated, output.weight, output.bias));
  return tensors_.failed() ? x : graph_.add(x, made);
}

ValueId DecoderBuilder::add_layer(ValueId x, size_t layer) {
  const std::string block = block_of(layer);
  x = add_parts(block, layer, x);
  if (layer_embeddings_ != kNone) x = add_layer_embedding(block, layer, x);
  if (!traits_.has_output_scales) return x;
  return scale(x, tensors_.number(block + "layer_output_scale.weight").value_or(1));
}

ValueId DecoderBuilder::add_logits(ValueId x, WeightId output, size_t vocabulary) {
  const WeightId bias = tensors_.vector("output.bias", vocabulary, Presence::kOptional);
  if (tensors_.failed()) return x;
  const ValueId logits = scale(graph_.matmul(x, output, bias), shape_.logit_factor);
  return shape_.logit_cap != 0 ? graph_.soft_cap(logits, shape_.logit_cap) : logits;
}

// The last norm of a block that predicts further tokens: the model's where it has none of its own.
ValueId DecoderBuilder::last_norm(const std::string& block, ValueId x) {
  std::string name(traits_.output_norm);
  for (const char* const own : {"layer_output_norm", "nextn.shared_head_norm"}) {
    if (tensors_.has(block + own + ".weight")) name = block + own;
  }
  if (!traits_.predicting->ends_with_layer_norm) return norm(name, x);
  const WeightId weight = tensors_.vector(name + ".weight", graph_.columns(x), Presence::kRequired);
  return tensors_.failed() ? x : graph_.layer_norm(x, weight, kNone, shape_.last_epsilon);
}

// DeepSeek-V3 Technical Report, 2024, section 2.2, with one block for all further tokens.
// Embeddings and the output matrix are the model's but where the block has its own.
ValueId DecoderBuilder::add_predicting_block(size_t vocabulary) {
  const std::string block = block_of(0);
  const size_t columns = shape_.sizes.columns;
  const std::string own_table = block + "nextn.embed_tokens.weight";
  const std::string own_output = block + "nextn.shared_head_head.weight";
  const bool has_table = tensors_.has(own_table);
  const WeightId table = tensors_.matrix_alone(has_table ? own_table : kTable, vocabulary, columns);
  const Product joined = tensors_.product(block, {"nextn.eh_proj", columns}, 2 * columns);
  if (tensors_.failed()) return kNone;
  const ValueId embedded =
      norm(block + "nextn.enorm", scale(graph_.embed(table), shape_.embedding_factor));
  const ValueId given = norm(block + "nextn.hnorm", graph_.given_rows(columns));
  ValueId x = graph_.matmul(graph_.join_heads(embedded, 1, given, 1), joined.weight, joined.bias);
  if (!tensors_.failed()) x = add_layer(x, 0);
  x = last_norm(block, graph_.select_rows(x));
  WeightId output = table;
  if (tensors_.has(own_output)) {
    output = tensors_.matrix(own_output, vocabulary, columns);
  } else if (tensors_.has(kOutput)) {
    output = tensors_.matrix(kOutput, vocabulary, columns);
  } else if (has_table) {
    output = tensors_.matrix_alone(kTable, vocabulary, columns);
  }
  return tensors_.failed() ? x : add_logits(x, output, vocabulary);
}

Result<RotaryTables> add_rotaries(const ModelSource& source, const DecoderTraits& traits,
                                  const std::string& architecture, DecoderShape& shape,
                                  Graph& graph) {
  if (traits.alibi_bias != 0) return RotaryTables();
  RopeShape rope_shape{
      .pairs = traits.rotary_pairs,
      .head_dimension = shape.latent_attention ? shape.latent_attention->rope_dimension
                                               : shape.sizes.head_dimension,
      .trained_context = shape.context,
      .context_tokens = source.context_tokens != 0 ? source.context_tokens : shape.context,
      .multiplies_scores = traits.has_latent_attention,
      .rounds_ramp = traits.rounds_yarn_ramp};
  auto usual = read_rope(source.file, architecture, rope_shape);
  if (!usual) return std::unexpected(usual.error());
  for (LayerShape& layer : shape.layers) {
    layer.score_factor *= static_cast<float>(usual->score_factor);
    if (std::isfinite(layer.score_factor)) continue;
    return invalid_input("{}.rope.scaling.* make scores {} times as large; it must be finite",
                         architecture, usual->score_factor);
  }
  RotaryTables tables;
  tables.usual = graph.add_rotary(std::move(usual->rotary));
  tables.windowed = tables.usual;
  const auto windowed_layer = std::ranges::find(shape.layers, true, &LayerShape::has_window);
  if (windowed_layer == shape.layers.end()) return tables;
  rope_shape.head_dimension = windowed_layer->head_dimension;
  rope_shape.dimension_key = "rope.dimension_count_swa";
  const Rotary& all = graph.rotaries()[tables.usual];
  rope_shape.fallback_key = "rope.freq_base";
  rope_shape.base_key = "rope.freq_base_swa";
  if (traits.window.rope_base) {
    rope_shape.fallback_key = {};
    rope_shape.base = *traits.window.rope_base;
  }
  rope_shape.is_scaled = traits.window.is_scaled;
  auto windowed = read_rope(source.file, architecture, rope_shape);
  if (!windowed) return std::unexpected(windowed.error());
  if (windowed->rotary != all) tables.windowed = graph.add_rotary(std::move(windowed->rotary));
  return tables;
}

// The end of a model that does not generate: scores of a head, or states, which some models' last
// products (dense_2, dense_3) change before they are pooled. They are linear, so that a mean of
// what they make is what they make of the mean.
ValueId add_end(const GgufFile& file, ModelTensors& tensors, Graph& graph, ModelOutput output,
                const RankingHeadTraits& head, ValueId x) {
  if (output == ModelOutput::kScores) return add_ranking_head(file, tensors, graph, x, head);
  for (const char* name : {"dense_2", "dense_3"}) {
    const GgufTensor* tensor = file.find_tensor(std::string(name) + ".weight");
    if (tensor == nullptr || tensors.failed()) continue;
    const Product product = tensors.product("", {name, tensor->rows()}, graph.columns(x));
    if (!tensors.failed()) x = graph.matmul(x, product.weight, product.bias);
  }
  return x;
}

// The layers and the end of a model.
Result<void> add_model(const ModelSource& source, const DecoderTraits& traits,
                       const DecoderShape& shape, ModelTensors& tensors, DecoderBuilder& builder,
                       Model& model) {
  Graph& graph = model.graph;
  const size_t columns = shape.sizes.columns;
  const WeightId table = tensors.matrix_alone(kTable, model.vocabulary_size, columns);
  if (tensors.failed()) return tensors.result();
  ValueId x = builder.scale(graph.embed(table), shape.embedding_factor);
  if (traits.has_embedding_norm) x = builder.norm("token_embd_norm", x);
  if (shape.layer_columns > 0) builder.embed_by_layer(x, model.vocabulary_size);
  for (size_t layer = 0; layer < shape.sizes.layers && !tensors.failed(); ++layer) {
    model.layer_inputs.push_back(x);
    x = builder.add_layer(x, layer);
  }
  model.layer_inputs.push_back(x);
  const auto end = read_output(source.file, model.architecture,
                               traits.is_encoder ? ModelOutput::kStates : ModelOutput::kLogits);
  if (!end) return std::unexpected(end.error());
  model.output = *end;
  const bool reads_mean = traits.head_reads_mean && model.output == ModelOutput::kScores;
  if (reads_mean && !tensors.failed() && !graph.sees_ahead()) {
    return invalid_input(
        "{}.attention.sliding_window is {} in each of {} layers, so that no token sees a later "
        "one, but the head reads the mean of all: take a file with longer windows",
        model.architecture, shape.window, shape.layers.size());
  }
  x = builder.norm(std::string(traits.output_norm), reads_mean ? x : graph.select_rows(x));
  if (reads_mean && !tensors.failed()) x = graph.mean_rows(x);
  if (model.output == ModelOutput::kLogits) {
    const WeightId output =
        tensors.has(kOutput) ? tensors.matrix(kOutput, model.vocabulary_size, columns) : table;
    graph.set_logits(builder.add_logits(x, output, model.vocabulary_size));
  } else {
    RankingHeadTraits head;
    if (traits.head_activation) head = {traits.head_activation, shape.epsilon};
    graph.set_logits(add_end(source.file, tensors, graph, model.output, head, x));
  }
  return {};
}

}  // namespace

Result<Model> build_decoder(const ModelSource& source, const DecoderTraits& given_traits) {
  DecoderTraits traits = given_traits;
  const GgufFile& file = source.file;
  Model model;
  model.architecture = file.text("general.architecture")->value_or("");
  if (source.predicting_block && !traits.predicting) {
    return invalid_input("blocks that predict further tokens are not known of architecture {}",
                         model.architecture);
  }
  if (source.predicting_block && !traits.predicting->feed_forward_norm.empty()) {
    traits.norms.feed_forward = traits.predicting->feed_forward_norm;
  }
  auto shape = read_decoder_shape(file, model.architecture, traits, source.predicting_block);
  if (!shape) return std::unexpected(shape.error());
  const GgufTensor* embedding = file.find_tensor(kTable);
  if (embedding == nullptr) return invalid_input("tensor token_embd.weight is missing");
  model.vocabulary_size = embedding->rows();
  model.trained_context_tokens = shape->context;
  if (const size_t most = shape->indexed_keys; most > 0) {
    if (source.context_tokens > most) {
      return invalid_input(
          "a context of {} tokens was asked for, but from {} on ({}.attention.indexer.top_k) this "
          "model's attention leaves out keys that its indexer chooses, which is not known here: "
          "ask for {} or less",
          source.context_tokens, most, model.architecture, most);
    }
    model.trained_context_tokens = std::min(shape->context, most);
  }
  model.layer_count = shape->sizes.layers;
  Graph& graph = model.graph;
  const auto tables = add_rotaries(source, traits, model.architecture, *shape, graph);
  if (!tables) return std::unexpected(tables.error());

  ModelTensors tensors(file, graph);
  DecoderBuilder builder(traits, *shape, *tables, tensors, graph);
  if (source.predicting_block) {
    model.given.form = traits.predicting->given;
    graph.set_logits(builder.add_predicting_block(model.vocabulary_size));
  } else {
    auto added = add_model(source, traits, *shape, tensors, builder, model);
    if (!added) return std::unexpected(added.error());
  }
  if (auto result = tensors.result(); !result) return std::unexpected(result.error());
  model.scale_tensors = tensors.scale_tensors();
  model.unused_tensors = tensors.unused_tensors();
  return model;
}

}  // namespace lockstep
