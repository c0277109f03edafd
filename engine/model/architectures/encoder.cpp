// Encoders: every token sees all others, and norms stand behind residuals. BERT (and RoBERTa) looks
// positions up, Nomic's turns them and has gates by SiLU, or experts without gates in every second
// layer, Jina's slopes scores by distance (ALiBi) and has gates by GELU, or is RoBERTa with rotary
// positions. Sources: BERT (arXiv 1810.04805), Nomic Embed (arXiv 2402.01613) and its mixture
// (arXiv 2502.07972), Jina Embeddings 2 (arXiv 2310.19923) and 3 (arXiv 2409.10173). GELU is the
// exact one, as theirs is.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "engine/kernels/attention.h"
#include "engine/model/architectures/expert_mixture.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/architectures/model_tensors.h"
#include "engine/model/architectures/ranking_head.h"
#include "engine/model/architectures/rope.h"
#include "engine/model/model.h"

namespace lockstep {
namespace {

struct EncoderTraits {
  bool looks_positions_up = false;
  bool has_rotary = false;
  float alibi_bias = 0;
  std::optional<ActivationFunction> gate = std::nullopt;  // none: GELU without a gate
  bool has_experts = false;
};

struct EncoderShape {
  size_t layers = 0;
  size_t columns = 0;
  size_t heads = 0;
  size_t feed_forward = 0;
  size_t context = 0;
  float epsilon = 0;
  ExpertMixture mixture = {};
};

class EncoderBuilder {
 public:
  EncoderBuilder(const EncoderTraits& traits, const EncoderShape& shape, ModelTensors& tensors,
                 Graph& graph)
      : traits_(traits), shape_(shape), tensors_(tensors), graph_(graph) {}

  ValueId embed(size_t vocabulary, size_t segments);
  ValueId add_layer(ValueId x, size_t layer);

 private:
  ValueId norm(const std::string& name, ValueId x);
  ValueId norm_if_there(const std::string& name, ValueId x);
  ValueId multiply(const Product& product, ValueId x) {
    return graph_.matmul(x, product.weight, product.bias);
  }
  ValueId attend(const std::string& block, size_t layer, ValueId x);
  ValueId feed_forward(const std::string& block, size_t layer, ValueId x);

  const EncoderTraits& traits_;
  const EncoderShape& shape_;
  ModelTensors& tensors_;
  Graph& graph_;
};

ValueId EncoderBuilder::norm(const std::string& name, ValueId x) {
  const WeightId weight = tensors_.vector(name + ".weight", shape_.columns, Presence::kRequired);
  const WeightId bias = tensors_.vector(name + ".bias", shape_.columns, Presence::kOptional);
  return tensors_.failed() ? x : graph_.layer_norm(x, weight, bias, shape_.epsilon);
}

ValueId EncoderBuilder::norm_if_there(const std::string& name, ValueId x) {
  return tensors_.has(name + ".weight") ? norm(name, x) : x;
}

ValueId EncoderBuilder::embed(size_t vocabulary, size_t segments) {
  const auto look_up = [&](const std::string& name, size_t rows, EmbedIndex index) {
    const WeightId table = tensors_.matrix_alone(name, rows, shape_.columns);
    return tensors_.failed() ? ValueId{0} : graph_.embed(table, index);
  };
  ValueId x = look_up("token_embd.weight", vocabulary, EmbedIndex::kToken);
  if (segments > 0) {
    const ValueId types = look_up("token_types.weight", segments, EmbedIndex::kSegment);
    if (!tensors_.failed()) x = graph_.add(x, types);
  }
  if (traits_.looks_positions_up) {
    const ValueId places = look_up("position_embd.weight", shape_.context, EmbedIndex::kPosition);
    if (!tensors_.failed()) x = graph_.add(x, places);
  }
  return norm("token_embd_norm", x);
}

ValueId EncoderBuilder::attend(const std::string& block, size_t layer, ValueId x) {
  const size_t columns = shape_.columns;
  const size_t heads = shape_.heads;
  const std::array<ProductName, 3> names = {
      {{"attn_q", columns}, {"attn_k", columns}, {"attn_v", columns}}};
  const std::vector<Product> inputs = tensors_.products(block, names, "attn_qkv", columns);
  const Product output = tensors_.product(block, {"attn_output", columns}, columns);
  if (tensors_.failed()) return x;
  ValueId q = norm_if_there(block + "attn_q_norm", multiply(inputs[0], x));
  ValueId k = norm_if_there(block + "attn_k_norm", multiply(inputs[1], x));
  const ValueId v = multiply(inputs[2], x);
  if (traits_.has_rotary) {
    q = graph_.rotary(q, heads);
    k = graph_.rotary(k, heads);
  }
  if (tensors_.failed()) return x;
  const auto dimension = static_cast<float>(columns / heads);
  const AttentionTraits attention = {
      .scale = 1 / std::sqrt(dimension), .ahead = kAllAhead, .alibi_bias = traits_.alibi_bias};
  return multiply(output, graph_.attention(layer, q, k, v, heads, heads, attention));
}

// Jina's code models have gates, and its first ones in one tensor with what they gate.
ValueId EncoderBuilder::feed_forward(const std::string& block, size_t layer, ValueId x) {
  if (shape_.mixture.has_experts(layer)) {
    return add_expert_mixture(graph_, tensors_, shape_.mixture, block, {x, x, x});
  }
  const size_t columns = shape_.columns;
  const size_t wide = shape_.feed_forward;
  const Product down = tensors_.product(block, {"ffn_down", columns}, wide);
  if (!traits_.gate) {
    const Product up = tensors_.product(block, {"ffn_up", wide}, columns);
    if (tensors_.failed()) return x;
    return multiply(down, graph_.activation(ActivationFunction::kGelu, multiply(up, x)));
  }
  const std::array<ProductName, 2> names = {{{"ffn_gate", wide}, {"ffn_up", wide}}};
  const std::vector<Product> inputs = tensors_.products(block, names, "ffn_up", columns);
  if (tensors_.failed()) return x;
  const ValueId gate = multiply(inputs[0], x);
  return multiply(down, graph_.gate(*traits_.gate, gate, multiply(inputs[1], x)));
}

ValueId EncoderBuilder::add_layer(ValueId x, size_t layer) {
  const std::string block = fmt::format("blk.{}.", layer);
  const ValueId attended = attend(block, layer, x);
  if (tensors_.failed()) return x;
  ValueId y = norm(block + "attn_output_norm", graph_.add(x, attended));
  // Some of Jina's models add the layer's input once more.
  if (tensors_.has(block + "attn_norm_2.weight")) {
    y = norm(block + "attn_norm_2", graph_.add(y, x));
  }
  const ValueId fed = feed_forward(block, layer, y);
  return tensors_.failed() ? x : norm(block + "layer_output_norm", graph_.add(y, fed));
}

Result<EncoderShape> read_shape(const GgufFile& file, const std::string& architecture,
                                const EncoderTraits& traits) {
  ModelKeys keys(file, architecture);
  EncoderShape shape;
  shape.layers = keys.count("block_count", {}, kMostLayers);
  shape.columns = keys.count("embedding_length", {}, kMostColumns);
  shape.heads = keys.count("attention.head_count", {}, kMostColumns);
  shape.feed_forward = keys.count("feed_forward_length", {}, kMostColumns);
  shape.context = keys.count("context_length", {}, kMostContext);
  shape.epsilon = static_cast<float>(keys.number("attention.layer_norm_epsilon", {}));
  const bool is_causal = keys.flag("attention.causal").value_or(false);
  if (auto read = keys.result(); !read) return std::unexpected(read.error());
  if (is_causal) {
    return invalid_input("{}.attention.causal is true: no decoders of this architecture are known",
                         architecture);
  }
  if (shape.columns % shape.heads != 0 || shape.columns / shape.heads > kMaxHeadDimension) {
    return invalid_input(
        "{}.embedding_length is {} and attention.head_count {}: heads must have the same whole "
        "number of columns, at most {}",
        architecture, shape.columns, shape.heads, kMaxHeadDimension);
  }
  if (!traits.has_experts) return shape;
  auto mixture = read_expert_mixture(keys, architecture,
                                     {.is_normalized = false,
                                      .activation = ActivationFunction::kGelu,
                                      .is_gated = false,
                                      .may_alternate = true},
                                     shape.layers);
  if (!mixture) return std::unexpected(mixture.error());
  shape.mixture = *mixture;
  return shape;
}

Result<Model> build_encoder(const ModelSource& source, const EncoderTraits& traits) {
  const GgufFile& file = source.file;
  Model model;
  model.architecture = file.text("general.architecture")->value_or("");
  const auto shape = read_shape(file, model.architecture, traits);
  if (!shape) return std::unexpected(shape.error());
  const auto output = read_output(file, model.architecture, ModelOutput::kStates);
  if (!output) return std::unexpected(output.error());
  const GgufTensor* words = file.find_tensor("token_embd.weight");
  if (words == nullptr) return invalid_input("tensor token_embd.weight is missing");
  const GgufTensor* segments = file.find_tensor("token_types.weight");
  model.output = *output;
  model.vocabulary_size = words->rows();
  model.trained_context_tokens = shape->context;
  model.has_longer_contexts = !traits.looks_positions_up;
  model.layer_count = shape->layers;
  Graph& graph = model.graph;
  if (traits.has_rotary) {
    auto rope = read_rope(
        file, model.architecture,
        {.pairs = RotaryPairs::kHalves,
         .head_dimension = shape->columns / shape->heads,
         .trained_context = shape->context,
         .context_tokens = source.context_tokens != 0 ? source.context_tokens : shape->context});
    if (!rope) return std::unexpected(rope.error());
    graph.add_rotary(std::move(rope->rotary));
  }
  ModelTensors tensors(file, graph);
  EncoderBuilder builder(traits, *shape, tensors, graph);
  ValueId x = builder.embed(model.vocabulary_size, segments == nullptr ? 0 : segments->rows());
  for (size_t layer = 0; layer < shape->layers && !tensors.failed(); ++layer) {
    x = builder.add_layer(x, layer);
  }
  if (auto result = tensors.result(); !result) return std::unexpected(result.error());
  x = graph.select_rows(x);
  if (model.output == ModelOutput::kScores) x = add_ranking_head(file, tensors, graph, x);
  if (auto result = tensors.result(); !result) return std::unexpected(result.error());
  model.scale_tensors = tensors.scale_tensors();
  graph.set_logits(x);
  return model;
}

}  // namespace

Result<Model> build_bert(const ModelSource& source) {
  return build_encoder(source, {.looks_positions_up = true});
}

Result<Model> build_nomic_bert(const ModelSource& source) {
  return build_encoder(source, {.has_rotary = true, .gate = ActivationFunction::kSilu});
}

Result<Model> build_nomic_bert_moe(const ModelSource& source) {
  return build_encoder(source, {.has_rotary = true, .has_experts = true});
}

Result<Model> build_jina_bert_v3(const ModelSource& source) {
  return build_encoder(source, {.has_rotary = true});
}

Result<Model> build_jina_bert_v2(const ModelSource& source) {
  EncoderTraits traits = {.alibi_bias = 8};
  const GgufTensor* up = source.file.find_tensor("blk.0.ffn_up.weight");
  const auto wide = source.file.integer("jina-bert-v2.feed_forward_length");
  const bool is_fused = up != nullptr && wide && up->rows() != wide->value_or(0);
  if (is_fused || source.file.find_tensor("blk.0.ffn_gate.weight") != nullptr) {
    traits.gate = ActivationFunction::kGelu;
  }
  return build_encoder(source, traits);
}

}  // namespace lockstep
