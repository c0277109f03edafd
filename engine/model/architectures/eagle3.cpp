// EAGLE-3 (Y. Li, F. Wei, C. Zhang, H. Zhang: EAGLE-3, arXiv 2503.01840): one layer that drafts for
// another model, from what three of the other's layers read. The keys and tensors are those of
// llama.cpp's conversion.
#include <array>
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

constexpr const char* kEagle = "eagle3";
constexpr const char* kEagleTable = "token_embd.weight";
constexpr const char* kEagleOutput = "output.weight";
constexpr const char* kEagleTokens = "d2t";

struct Eagle {
  size_t model_columns = 0;  // of the other model's rows
  std::vector<size_t> model_layers;
  bool norms_residual = false;  // the residual begins with the normed row
  bool norms_rows = false;      // the other model's rows are normed together
};

Result<Eagle> read_eagle_keys(const GgufFile& file) {
  ModelKeys keys(file, kEagle);
  Eagle eagle;
  eagle.model_columns = keys.count("target_hidden_size", {}, kMostColumns);
  eagle.norms_residual = keys.flag("norm_before_residual").value_or(false);
  eagle.norms_rows = keys.flag("norm_before_fc").value_or(false);
  if (auto result = keys.result(); !result) return std::unexpected(result.error());
  const auto layers = file.integers(std::string(kEagle) + ".target_layers");
  if (!layers) return std::unexpected(layers.error());
  for (const int64_t layer : layers->value_or(std::vector<int64_t>())) {
    if (layer < 0 || layer > static_cast<int64_t>(kMostLayers)) {
      return invalid_input("eagle3.target_layers has {}; it must be from 0 to {}", layer,
                           kMostLayers);
    }
    eagle.model_layers.push_back(static_cast<size_t>(layer));
  }
  if (eagle.model_layers.empty()) {
    return invalid_input("eagle3.target_layers is missing: the layers whose rows are read");
  }
  return eagle;
}

class EagleBuilder {
 public:
  EagleBuilder(const Eagle& eagle, const DecoderShape& shape, const LayerShape& layer,
               ModelTensors& tensors, Graph& graph)
      : eagle_(eagle), shape_(shape), layer_(layer), tensors_(tensors), graph_(graph) {}

  // Gives the logits.
  ValueId add(size_t vocabulary, size_t logit_rows, GivenRows& given);

 private:
  ValueId norm(const std::string& name, ValueId x);
  ValueId add_row(GivenRows& given);
  ValueId attend(ValueId h);
  ValueId feed(ValueId h);

  const Eagle& eagle_;
  const DecoderShape& shape_;
  const LayerShape& layer_;
  ModelTensors& tensors_;
  Graph& graph_;
};

ValueId EagleBuilder::norm(const std::string& name, ValueId x) {
  const WeightId weight = tensors_.vector(name + ".weight", graph_.columns(x), Presence::kRequired);
  return tensors_.failed() ? x : graph_.rms_norm(x, weight, shape_.epsilon);
}

// A product of the other model's rows, or its own row: the other of both is given as zeros, which
// add nothing.
ValueId EagleBuilder::add_row(GivenRows& given) {
  const size_t columns = shape_.sizes.columns;
  const size_t all = eagle_.model_layers.size() * eagle_.model_columns;
  given = {.layers = eagle_.model_layers, .form = HiddenForm::kResidual, .own_begin = all};
  const WeightId matrix = tensors_.matrix("fc.weight", columns, all);
  const ValueId both = graph_.given_rows(all + columns);
  if (tensors_.failed()) return both;
  ValueId rows = graph_.slice_heads(both, 1, 0, all);
  if (eagle_.norms_rows) rows = norm("enc.output_norm", rows);
  if (tensors_.failed()) return both;
  return graph_.add(graph_.matmul(rows, matrix), graph_.slice_heads(both, 1, all, columns));
}

ValueId EagleBuilder::attend(ValueId h) {
  const size_t dimension = layer_.head_dimension;
  const std::array<ProductName, 3> names = {{{"attn_q", layer_.heads * dimension},
                                             {"attn_k", layer_.kv_heads * dimension},
                                             {"attn_v", layer_.kv_heads * layer_.value_dimension}}};
  const std::vector<Product> inputs =
      tensors_.products("blk.0.", names, "attn_qkv", graph_.columns(h));
  const Product output = tensors_.product("blk.0.", {"attn_output", shape_.sizes.columns},
                                          layer_.heads * layer_.value_dimension);
  if (tensors_.failed()) return h;
  std::vector<ValueId> made;
  for (const Product& input : inputs) made.push_back(graph_.matmul(h, input.weight, input.bias));
  const ValueId attended = graph_.attention(
      0, graph_.rotary(made[0], layer_.heads), graph_.rotary(made[1], layer_.kv_heads), made[2],
      layer_.heads, layer_.kv_heads, {.scale = layer_.score_factor});
  return graph_.matmul(attended, output.weight, output.bias);
}

ValueId EagleBuilder::feed(ValueId h) {
  const std::array<ProductName, 2> names = {
      {{"ffn_gate", layer_.feed_forward}, {"ffn_up", layer_.feed_forward}}};
  const std::vector<Product> inputs =
      tensors_.products("blk.0.", names, "ffn_up", graph_.columns(h));
  const Product down =
      tensors_.product("blk.0.", {"ffn_down", graph_.columns(h)}, layer_.feed_forward);
  if (tensors_.failed()) return h;
  const ValueId gate = graph_.matmul(h, inputs[0].weight, inputs[0].bias);
  const ValueId up = graph_.matmul(h, inputs[1].weight, inputs[1].bias);
  return graph_.matmul(graph_.gate(layer_.activation, gate, up), down.weight, down.bias);
}

ValueId EagleBuilder::add(size_t vocabulary, size_t logit_rows, GivenRows& given) {
  const size_t columns = shape_.sizes.columns;
  const WeightId table = tensors_.matrix_alone(kEagleTable, vocabulary, columns);
  const ValueId row = add_row(given);
  if (tensors_.failed()) return kNone;
  const ValueId embedded = norm("blk.0.attn_norm", graph_.embed(table));
  const ValueId normed = norm("blk.0.attn_norm_2", row);
  if (tensors_.failed()) return kNone;
  ValueId x = eagle_.norms_residual ? normed : row;
  const ValueId attended = attend(graph_.join_heads(embedded, 1, normed, 1));
  if (tensors_.failed()) return kNone;
  x = graph_.add(x, attended);
  const ValueId fed = feed(norm("blk.0.ffn_norm", x));
  if (tensors_.failed()) return kNone;
  x = norm("output_norm", graph_.select_rows(graph_.add(x, fed)));
  // The rows of a vocabulary of its own are those that d2t names.
  const bool is_table = !tensors_.has(kEagleOutput) && logit_rows == vocabulary;
  const WeightId output = is_table ? table : tensors_.matrix(kEagleOutput, logit_rows, columns);
  return tensors_.failed() ? kNone : graph_.matmul(x, output);
}

// The tokens of a vocabulary of its own; empty: it has none.
Result<std::vector<TokenId>> read_logit_tokens(const GgufFile& file, size_t vocabulary) {
  const auto numbers = file.read_integers(kEagleTokens);
  if (!numbers) return std::unexpected(numbers.error());
  std::vector<TokenId> tokens;
  for (const int64_t number : numbers->value_or(std::vector<int64_t>())) {
    if (number < 0 || number >= static_cast<int64_t>(vocabulary)) {
      return invalid_input("tensor d2t has token {} at {}, of a vocabulary of {}", number,
                           tokens.size(), vocabulary);
    }
    tokens.push_back(static_cast<TokenId>(number));
  }
  return tokens;
}

}  // namespace

Result<Model> build_eagle3(const ModelSource& source) {
  const GgufFile& file = source.file;
  const auto eagle = read_eagle_keys(file);
  if (!eagle) return std::unexpected(eagle.error());
  const auto shape = read_decoder_shape(file, kEagle, {});
  if (!shape) return std::unexpected(shape.error());
  if (shape->sizes.layers != 1) {
    return invalid_input("eagle3.block_count is {}; one layer is known", shape->sizes.layers);
  }
  const GgufTensor* const table = file.find_tensor(kEagleTable);
  if (table == nullptr) return invalid_input("tensor {} is missing", kEagleTable);
  Model model;
  model.architecture = kEagle;
  model.vocabulary_size = table->rows();
  model.trained_context_tokens = shape->context;
  model.layer_count = 1;
  auto tokens = read_logit_tokens(file, model.vocabulary_size);
  if (!tokens) return std::unexpected(tokens.error());
  model.logit_tokens = std::move(*tokens);
  LayerShape layer = shape->layers.front();
  auto rope = read_rope(
      file, kEagle,
      {.head_dimension = layer.head_dimension,
       .trained_context = shape->context,
       .context_tokens = source.context_tokens != 0 ? source.context_tokens : shape->context});
  if (!rope) return std::unexpected(rope.error());
  layer.score_factor *= static_cast<float>(rope->score_factor);
  model.graph.add_rotary(std::move(rope->rotary));
  ModelTensors tensors(file, model.graph);
  const size_t logit_rows =
      model.logit_tokens.empty() ? model.vocabulary_size : model.logit_tokens.size();
  EagleBuilder builder(*eagle, *shape, layer, tensors, model.graph);
  model.graph.set_logits(builder.add(model.vocabulary_size, logit_rows, model.given));
  if (auto result = tensors.result(); !result) return std::unexpected(result.error());
  model.scale_tensors = tensors.scale_tensors();
  return model;
}

}  // namespace lockstep
