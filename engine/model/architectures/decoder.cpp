#include "engine/model/architectures/decoder.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/architectures/decoder_shape.h"
#include "engine/model/architectures/expert_mixture.h"
#include "engine/model/architectures/latent_attention.h"
#include "engine/model/architectures/rope.h"

namespace lockstep {
namespace {

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

  ValueId add_layer(ValueId x, size_t layer);
  ValueId norm(const std::string& name, ValueId x);
  ValueId scale(ValueId x, float factor) { return factor == 1 ? x : graph_.scale(x, factor); }

 private:
  // A norm of a layer by its tensor's name; without a name x itself.
  ValueId layer_norm(const std::string& block, std::string_view name, ValueId x);
  ValueId head_norm(const std::string& name, ValueId x, size_t heads);
  ValueId treat_heads(const std::string& norm, ValueId x, size_t heads, size_t layer);
  ValueId attend(const std::string& block, size_t layer, ValueId h,
                 const std::vector<Product>& inputs);
  ValueId attend_latents(const std::string& block, size_t layer, ValueId h);
  ValueId add_attention(const std::string& block, size_t layer, ValueId h);
  ValueId add_dense_feed_forward(const std::string& block, size_t layer, ValueId h);
  ValueId add_feed_forward(const std::string& block, size_t layer, ValueId h);
  AttentionTraits attention_traits(const std::string& block, size_t layer);

  const DecoderTraits& traits_;
  const DecoderShape& shape_;
  const RotaryTables& tables_;
  ModelTensors& tensors_;
  Graph& graph_;
};

ValueId DecoderBuilder::norm(const std::string& name, ValueId x) {
  const size_t columns = graph_.columns(x);
  const bool is_rms = traits_.norm == NormKind::kRms;
  const WeightId weight = tensors_.vector(name + ".weight", columns, Presence::kRequired);
  const WeightId bias =
      is_rms ? kNone : tensors_.vector(name + ".bias", columns, Presence::kOptional);
  if (tensors_.failed()) return x;
  return is_rms ? graph_.rms_norm(x, weight, shape_.epsilon)
                : graph_.layer_norm(x, weight, bias, shape_.epsilon);
}

ValueId DecoderBuilder::layer_norm(const std::string& block, std::string_view name, ValueId x) {
  return name.empty() ? x : norm(block + std::string(name), x);
}

ValueId DecoderBuilder::head_norm(const std::string& name, ValueId x, size_t heads) {
  const bool is_whole = traits_.head_norms.are_whole;
  const size_t columns = is_whole ? graph_.columns(x) : graph_.columns(x) / heads;
  const WeightId weight = tensors_.vector(name + ".weight", columns, traits_.head_norms.presence);
  if (weight == kNone) return x;
  return is_whole ? graph_.rms_norm(x, weight, shape_.epsilon)
                  : graph_.head_norm(x, weight, shape_.epsilon, heads);
}

// The norm and the positions of queries or keys.
ValueId DecoderBuilder::treat_heads(const std::string& norm, ValueId x, size_t heads,
                                    size_t layer) {
  const bool has_window = shape_.has_window(layer);
  const bool is_alone = shape_.window > 0 && traits_.window.rotates_alone;
  const bool has_rotary =
      (traits_.has_rotary == nullptr || traits_.has_rotary(layer)) && (has_window || !is_alone);
  if (!traits_.head_norms.are_last) x = head_norm(norm, x, heads);
  if (has_rotary) x = graph_.rotary(x, heads, has_window ? tables_.windowed : tables_.usual);
  if (traits_.head_norms.are_last) x = head_norm(norm, x, heads);
  return x;
}

AttentionTraits DecoderBuilder::attention_traits(const std::string& block, size_t layer) {
  const WeightId sinks =
      traits_.has_sinks
          ? tensors_.vector(block + "attn_sinks.weight", shape_.sizes.heads, Presence::kRequired)
          : kNone;
  return {.scale = shape_.score_factor,
          .window = shape_.has_window(layer) ? shape_.window : 0,
          .score_cap = shape_.score_cap,
          .sinks = sinks};
}

// Attention of heads with keys and values of their own; `inputs`: the products that make queries,
// keys and values.
ValueId DecoderBuilder::attend(const std::string& block, size_t layer, ValueId h,
                               const std::vector<Product>& inputs) {
  const auto multiply = [&](const Product& product) {
    return graph_.matmul(h, product.weight, product.bias);
  };
  const size_t heads = shape_.sizes.heads;
  const ValueId q = multiply(inputs[0]);
  const ValueId k = multiply(inputs[1]);
  const ValueId v = multiply(inputs[2]);
  ValueId queries = treat_heads(block + "attn_q_norm", q, heads, layer);
  const ValueId keys = treat_heads(block + "attn_k_norm", k, shape_.kv_heads, layer);
  if (shape_.temperature) queries = graph_.temperature(queries, *shape_.temperature);
  const AttentionTraits traits = attention_traits(block, layer);
  if (tensors_.failed()) return h;
  return graph_.attention(layer, queries, keys, v, heads, shape_.kv_heads, traits);
}

ValueId DecoderBuilder::attend_latents(const std::string& block, size_t layer, ValueId h) {
  LatentAttention latent = *shape_.latent_attention;
  latent.epsilon = shape_.epsilon;
  latent.traits = attention_traits(block, layer);
  latent.temperature = shape_.temperature;
  return add_latent_attention(graph_, tensors_, latent, block, layer, h);
}

// Returns what is to be added to the residual, but for a norm behind it.
ValueId DecoderBuilder::add_attention(const std::string& block, size_t layer, ValueId h) {
  const size_t columns = graph_.columns(h);
  const size_t heads = shape_.sizes.heads;
  const size_t kv_heads = shape_.kv_heads;
  const size_t dimension = shape_.sizes.head_dimension;
  const size_t value_dimension =
      shape_.latent_attention ? shape_.latent_attention->value_dimension : shape_.value_dimension;
  std::vector<Product> inputs;
  if (!shape_.latent_attention) {
    const std::array<ProductName, 3> names = {{{"attn_q", heads * dimension},
                                               {"attn_k", kv_heads * dimension},
                                               {"attn_v", kv_heads * value_dimension}}};
    inputs = tensors_.products(block, names, "attn_qkv", columns, traits_.attention_biases);
  }
  const Product output = tensors_.product(block, {"attn_output", columns}, heads * value_dimension,
                                          traits_.output_bias);
  if (tensors_.failed()) return h;
  const ValueId attended =
      shape_.latent_attention ? attend_latents(block, layer, h) : attend(block, layer, h, inputs);
  return tensors_.failed() ? h : graph_.matmul(attended, output.weight, output.bias);
}

ValueId DecoderBuilder::add_dense_feed_forward(const std::string& block, size_t layer, ValueId h) {
  const size_t columns = graph_.columns(h);
  const size_t wide = shape_.feed_forward;
  std::vector<Product> inputs;
  if (traits_.is_gated) {
    const std::array<ProductName, 2> names = {{{"ffn_gate", wide}, {"ffn_up", wide}}};
    inputs = tensors_.products(block, names, "ffn_up", columns);
  } else {
    inputs.push_back(tensors_.product(block, {"ffn_up", wide}, columns));
  }
  const Product down = tensors_.product(block, {"ffn_down", columns}, wide);
  if (tensors_.failed()) return h;
  const Activation& activation = shape_.activations[layer];
  std::vector<ValueId> values;
  for (const Product& input : inputs) values.push_back(graph_.matmul(h, input.weight, input.bias));
  const ValueId activated = traits_.is_gated ? graph_.gate(activation, values[0], values[1])
                                             : graph_.activation(activation, values[0]);
  return graph_.matmul(activated, down.weight, down.bias);
}

ValueId DecoderBuilder::add_feed_forward(const std::string& block, size_t layer, ValueId h) {
  return shape_.mixture.has_experts(layer)
             ? add_expert_mixture(graph_, tensors_, shape_.mixture, block, h)
             : add_dense_feed_forward(block, layer, h);
}

ValueId DecoderBuilder::add_layer(ValueId x, size_t layer) {
  const std::string block = fmt::format("blk.{}.", layer);
  const LayerNorms& norms = traits_.norms;
  const auto finish = [&](std::string_view behind, ValueId y) {
    return scale(layer_norm(block, behind, y), shape_.residual_factor);
  };
  const ValueId h = layer_norm(block, norms.attention, x);
  const ValueId attended = finish(norms.behind_attention, add_attention(block, layer, h));
  if (traits_.residual == ResidualForm::kParallel) {
    const ValueId other = norms.feed_forward.empty() ? h : layer_norm(block, norms.feed_forward, x);
    const ValueId fed = finish(norms.behind_feed_forward, add_feed_forward(block, layer, other));
    return tensors_.failed() ? x : graph_.add(graph_.add(x, attended), fed);
  }
  if (tensors_.failed()) return x;
  x = graph_.add(x, attended);
  const ValueId fed = add_feed_forward(block, layer, layer_norm(block, norms.feed_forward, x));
  const ValueId finished = finish(norms.behind_feed_forward, fed);
  return tensors_.failed() ? x : graph_.add(x, finished);
}

Result<RotaryTables> add_rotaries(const ModelSource& source, const DecoderTraits& traits,
                                  const std::string& architecture, DecoderShape& shape,
                                  Graph& graph) {
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
  shape.score_factor *= static_cast<float>(usual->score_factor);
  if (!std::isfinite(shape.score_factor)) {
    return invalid_input("{}.rope.scaling.* make scores {} times as large; it must be finite",
                         architecture, usual->score_factor);
  }
  RotaryTables tables;
  tables.usual = graph.add_rotary(std::move(usual->rotary));
  tables.windowed = tables.usual;
  if (shape.window == 0) return tables;
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

}  // namespace

Result<Model> build_decoder(const ModelSource& source, const DecoderTraits& traits) {
  const GgufFile& file = source.file;
  Model model;
  model.architecture = file.text("general.architecture")->value_or("");
  auto shape = read_decoder_shape(file, model.architecture, traits);
  if (!shape) return std::unexpected(shape.error());
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) return invalid_input("tensor token_embd.weight is missing");
  model.vocabulary_size = embedding->rows();
  model.trained_context_tokens = shape->context;
  model.layer_count = shape->sizes.layers;
  Graph& graph = model.graph;
  const auto tables = add_rotaries(source, traits, model.architecture, *shape, graph);
  if (!tables) return std::unexpected(tables.error());

  ModelTensors tensors(file, graph);
  const size_t columns = shape->sizes.columns;
  const WeightId table = tensors.table("token_embd.weight", model.vocabulary_size, columns);
  if (tensors.failed()) return std::unexpected(tensors.result().error());
  DecoderBuilder builder(traits, *shape, *tables, tensors, graph);
  ValueId x = builder.scale(graph.embed(table), shape->embedding_factor);
  for (size_t layer = 0; layer < shape->sizes.layers && !tensors.failed(); ++layer) {
    x = builder.add_layer(x, layer);
  }
  x = builder.norm("output_norm", graph.select_rows(x));
  const bool has_output = tensors.has("output.weight");
  const WeightId output =
      has_output ? tensors.matrix("output.weight", model.vocabulary_size, columns) : table;
  const WeightId bias = tensors.vector("output.bias", model.vocabulary_size, Presence::kOptional);
  if (auto result = tensors.result(); !result) return std::unexpected(result.error());
  model.scale_tensors = tensors.scale_tensors();
  ValueId logits = builder.scale(graph.matmul(x, output, bias), shape->logit_factor);
  if (shape->logit_cap != 0) logits = graph.soft_cap(logits, shape->logit_cap);
  graph.set_logits(logits);
  return model;
}

}  // namespace lockstep
