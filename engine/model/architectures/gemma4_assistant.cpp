// Gemma 4's assistants: a few layers that draft for a Gemma 4 model. They have no keys and values
// of their own: layers with a window attend over those of the model's last layer but one, the
// others over those of its last. The keys and tensors are those of llama.cpp's conversion.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/architectures/decoder_shape.h"
#include "engine/model/architectures/model_keys.h"
#include "engine/model/architectures/model_tensors.h"
#include "engine/model/architectures/rope.h"
#include "engine/model/model.h"

namespace lockstep {
namespace {

constexpr const char* kAssistant = "gemma4-assistant";
constexpr const char* kAssistantTable = "token_embd.weight";

std::string output_scale_name(size_t layer) {
  return fmt::format("blk.{}.layer_output_scale.weight", layer);
}

float assistant_score_factor(const DecoderSizes&) {
  return 1;
}

DecoderTraits assistant_traits() {
  return {.rotary_pairs = RotaryPairs::kHalves,
          .window = {.period = 6, .presence = Presence::kRequired, .is_scaled = false},
          .score_factor = assistant_score_factor,
          .activation = ActivationFunction::kGeluTanh,
          .layers_predict = true};
}

// Layers with a window, or those without.
struct AssistantLayers {
  LayerShape shape = {};     // of each
  size_t from_end = 0;       // the model's layer whose keys and values they read
  size_t window = 0;         // of that one; 0: none
  size_t rotary = 0;         // their table
  size_t first_column = 0;   // of keys in the given rows
  ValueId attended = kNone;  // what the first of them gives, which stores keys and values

  GivenKeys keys() const { return {from_end, shape.kv_heads, shape.head_dimension, window}; }
};

class AssistantBuilder {
 public:
  AssistantBuilder(const DecoderShape& shape, size_t model_columns, ModelTensors& tensors,
                   Graph& graph)
      : shape_(shape), model_columns_(model_columns), tensors_(tensors), graph_(graph) {}

  // Before add().
  Result<void> find_layers(const ModelSource& source);
  GivenRows given() const;
  // Gives the logits.
  ValueId add(size_t vocabulary);

 private:
  Result<void> add_kind(const ModelSource& source, bool has_window);
  std::optional<AssistantLayers>& kind_of(size_t layer) {
    return shape_.layers[layer].has_window ? windowed_ : whole_;
  }
  ValueId norm(const std::string& name, ValueId x);
  ValueId add_input(size_t vocabulary);
  ValueId attend(const std::string& block, size_t layer, ValueId h);
  ValueId feed(const std::string& block, size_t layer, ValueId h);
  ValueId add_layer(size_t layer, ValueId x);

  const DecoderShape& shape_;
  const size_t model_columns_;
  ModelTensors& tensors_;
  Graph& graph_;
  std::optional<AssistantLayers> windowed_;
  std::optional<AssistantLayers> whole_;
  ValueId rows_ = kNone;  // that are given
};

// A token's query stands one place behind the place at which it is computed. So a window has one
// key less: the token's own is not there.
Result<void> AssistantBuilder::add_kind(const ModelSource& source, bool has_window) {
  const auto first = std::ranges::find(shape_.layers, has_window, &LayerShape::has_window);
  if (first == shape_.layers.end()) return {};
  RopeShape rope_shape{
      .pairs = RotaryPairs::kHalves,
      .head_dimension = first->head_dimension,
      .trained_context = shape_.context,
      .context_tokens = source.context_tokens != 0 ? source.context_tokens : shape_.context};
  if (has_window) {
    rope_shape.dimension_key = "rope.dimension_count_swa";
    rope_shape.base_key = "rope.freq_base_swa";
    rope_shape.fallback_key = "rope.freq_base";
    rope_shape.is_scaled = false;
  }
  auto rope = read_rope(source.file, kAssistant, rope_shape);
  if (!rope) return std::unexpected(rope.error());
  rope->rotary.offset = 1;
  AssistantLayers layers{.shape = *first,
                         .from_end = has_window ? size_t{2} : size_t{1},
                         .window = has_window ? shape_.window : 0,
                         .rotary = graph_.add_rotary(std::move(rope->rotary)),
                         .first_column = model_columns_ + given().key_columns()};
  layers.shape.score_factor *= static_cast<float>(rope->score_factor);
  (has_window ? windowed_ : whole_) = layers;
  return {};
}

Result<void> AssistantBuilder::find_layers(const ModelSource& source) {
  for (const bool has_window : {true, false}) {
    if (auto added = add_kind(source, has_window); !added) return added;
  }
  if (windowed_ && shape_.window < 2) {
    return invalid_input("{}.attention.sliding_window is {}; it must be 2 or more", kAssistant,
                         shape_.window);
  }
  for (size_t index = 0; index < shape_.layers.size(); ++index) {
    const LayerShape& layer = shape_.layers[index];
    const LayerShape& first = kind_of(index)->shape;
    if (layer.heads != first.heads || layer.kv_heads != first.kv_heads) {
      return invalid_input(
          "{}.attention.head_count and head_count_kv are {} and {} in layer {}, and {} and {} in "
          "one before it that reads the same keys; both must have as many",
          kAssistant, layer.heads, layer.kv_heads, index, first.heads, first.kv_heads);
    }
    if (layer.value_dimension == layer.head_dimension) continue;
    return invalid_input(
        "{}.attention: keys of layer {} have {} dimensions and its values {}; known are as many of "
        "both",
        kAssistant, index, layer.head_dimension, layer.value_dimension);
  }
  return {};
}

GivenRows AssistantBuilder::given() const {
  GivenRows given = {.form = HiddenForm::kNormed};
  for (const std::optional<AssistantLayers>& layers : {windowed_, whole_}) {
    if (layers) given.keys.push_back(layers->keys());
  }
  given.own_begin = model_columns_ + given.key_columns();
  return given;
}

ValueId AssistantBuilder::norm(const std::string& name, ValueId x) {
  const WeightId weight = tensors_.vector(name + ".weight", graph_.columns(x), Presence::kRequired);
  return tensors_.failed() ? x : graph_.rms_norm(x, weight, shape_.epsilon);
}

// The model's embedding beside a row: the model's, or what a product makes of the assistant's own.
// The other of both is given as zeros, which add nothing.
ValueId AssistantBuilder::add_input(size_t vocabulary) {
  const size_t columns = shape_.sizes.columns;
  const size_t own_begin = given().own_begin;
  const WeightId table = tensors_.matrix_alone(kModelTable, vocabulary, model_columns_);
  const WeightId behind = tensors_.matrix("nextn.post_projection.weight", model_columns_, columns);
  const WeightId before =
      tensors_.matrix("nextn.pre_projection.weight", columns, 2 * model_columns_);
  if (tensors_.failed()) return kNone;
  const float factor = std::sqrt(static_cast<float>(model_columns_));
  const ValueId embedded = graph_.scale(graph_.embed(table), factor);
  rows_ = graph_.given_rows(own_begin + columns);
  const ValueId own = graph_.matmul(graph_.slice_heads(rows_, 1, own_begin, columns), behind);
  const ValueId row = graph_.add(own, graph_.slice_heads(rows_, 1, 0, model_columns_));
  return graph_.matmul(graph_.join_heads(embedded, 1, row, 1), before);
}

// The first layer of a kind stores the keys and values that are given.
ValueId AssistantBuilder::attend(const std::string& block, size_t layer, ValueId h) {
  AssistantLayers& layers = *kind_of(layer);
  const LayerShape& sizes = layers.shape;
  const size_t dimension = sizes.head_dimension;
  const size_t wide = sizes.heads * dimension;
  const Product input = tensors_.product(block, {"attn_q", wide}, graph_.columns(h));
  const Product output = tensors_.product(block, {"attn_output", graph_.columns(h)}, wide);
  const WeightId weight =
      tensors_.vector(block + "attn_q_norm.weight", dimension, Presence::kRequired);
  if (tensors_.failed()) return h;
  ValueId queries = graph_.matmul(h, input.weight, input.bias);
  queries = graph_.head_norm(queries, weight, shape_.epsilon, sizes.heads);
  queries = graph_.rotary(queries, sizes.heads, layers.rotary);
  const AttentionTraits traits = {.scale = sizes.score_factor,
                                  .window = sizes.has_window ? layers.window - 1 : 0};
  ValueId attended = kNone;
  if (layers.attended == kNone) {
    const size_t columns = sizes.kv_heads * dimension;
    const ValueId keys = graph_.slice_heads(rows_, 1, layers.first_column, columns);
    const ValueId values = graph_.slice_heads(rows_, 1, layers.first_column + columns, columns);
    attended = graph_.attention(layer, queries, keys, values, sizes.heads, sizes.kv_heads, traits);
    layers.attended = attended;
  } else {
    attended = graph_.attention_over(layer, layers.attended, queries, traits);
  }
  return graph_.matmul(attended, output.weight, output.bias);
}

ValueId AssistantBuilder::feed(const std::string& block, size_t layer, ValueId h) {
  const LayerShape& sizes = shape_.layers[layer];
  const std::array<ProductName, 2> names = {
      {{"ffn_gate", sizes.feed_forward}, {"ffn_up", sizes.feed_forward}}};
  const std::vector<Product> inputs = tensors_.products(block, names, "ffn_up", graph_.columns(h));
  const Product down = tensors_.product(block, {"ffn_down", graph_.columns(h)}, sizes.feed_forward);
  if (tensors_.failed()) return h;
  const ValueId gate = graph_.matmul(h, inputs[0].weight, inputs[0].bias);
  const ValueId up = graph_.matmul(h, inputs[1].weight, inputs[1].bias);
  return graph_.matmul(graph_.gate(sizes.activation, gate, up), down.weight, down.bias);
}

ValueId AssistantBuilder::add_layer(size_t layer, ValueId x) {
  const std::string block = fmt::format("blk.{}.", layer);
  ValueId added = attend(block, layer, norm(block + "attn_norm", x));
  if (tensors_.failed()) return x;
  x = graph_.add(x, norm(block + "post_attention_norm", added));
  added = feed(block, layer, norm(block + "ffn_norm", x));
  if (tensors_.failed()) return x;
  x = graph_.add(x, norm(block + "post_ffw_norm", added));
  const float factor = tensors_.number(output_scale_name(layer)).value_or(1);
  return factor == 1 ? x : graph_.scale(x, factor);
}

ValueId AssistantBuilder::add(size_t vocabulary) {
  ValueId x = add_input(vocabulary);
  for (size_t layer = 0; layer < shape_.layers.size() && !tensors_.failed(); ++layer) {
    x = add_layer(layer, x);
  }
  const WeightId table = tensors_.matrix_alone(kAssistantTable, vocabulary, shape_.sizes.columns);
  if (tensors_.failed()) return kNone;
  x = norm("output_norm", graph_.select_rows(x));
  return tensors_.failed() ? kNone : graph_.matmul(x, table);
}

// Its table is the output matrix; embeddings are the model's.
Result<size_t> check_assistant_tables(const GgufFile& file, size_t model_columns) {
  const GgufTensor* const own = file.find_tensor(kAssistantTable);
  if (own == nullptr) return invalid_input("tensor {} is missing", kAssistantTable);
  const GgufTensor* const table = file.find_tensor(kModelTable);
  if (table == nullptr) return invalid_input("tensor {} is missing", kModelTable);
  if (table->columns() != model_columns || table->rows() != own->rows()) {
    return invalid_input(
        "it reads embeddings of {} columns ({}.embedding_length_out) and has {} tokens, and the "
        "model's table has {} tokens of {} columns: it was made for another model. Use the one "
        "that was made for this model, or another drafter, as --speculate ngram",
        model_columns, kAssistant, own->rows(), table->rows(), table->columns());
  }
  return own->rows();
}

// Those that are numbers of the graph.
Result<void> check_output_scales(const GgufFile& file, size_t layers) {
  for (size_t layer = 0; layer < layers; ++layer) {
    const std::string name = output_scale_name(layer);
    if (file.find_tensor(name) == nullptr) return invalid_input("tensor {} is missing", name);
  }
  return {};
}

}  // namespace

Result<Model> build_gemma4_assistant(const ModelSource& source) {
  const GgufFile& file = source.file;
  ModelKeys keys(file, kAssistant);
  const size_t model_columns = keys.count("embedding_length_out", {}, kMostColumns);
  if (auto read = keys.result(); !read) return std::unexpected(read.error());
  const auto shape = read_decoder_shape(file, kAssistant, assistant_traits());
  if (!shape) return std::unexpected(shape.error());
  const auto vocabulary = check_assistant_tables(file, model_columns);
  if (!vocabulary) return std::unexpected(vocabulary.error());
  if (auto all = check_output_scales(file, shape->layers.size()); !all) {
    return std::unexpected(all.error());
  }
  Model model;
  model.architecture = kAssistant;
  model.vocabulary_size = *vocabulary;
  model.trained_context_tokens = shape->context;
  model.layer_count = shape->sizes.layers;
  ModelTensors tensors(file, model.graph);
  tensors.leave_out("masked_embd_", "centroids of embeddings, without which all tokens are scored");
  AssistantBuilder builder(*shape, model_columns, tensors, model.graph);
  if (auto found = builder.find_layers(source); !found) return std::unexpected(found.error());
  model.given = builder.given();
  model.graph.set_logits(builder.add(model.vocabulary_size));
  if (auto result = tensors.result(); !result) return std::unexpected(result.error());
  model.scale_tensors = tensors.scale_tensors();
  model.unused_tensors = tensors.unused_tensors();
  return model;
}

}  // namespace lockstep
