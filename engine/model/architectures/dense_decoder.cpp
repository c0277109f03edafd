#include "engine/model/architectures/dense_decoder.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "engine/model/in_quotes.h"
#include "engine/model/tensor_reader.h"

namespace lockstep {
namespace {

// Bounds on what a file may claim; far above every model there is, far below what would overflow.
constexpr uint64_t kMostLayers = 4096;
constexpr uint64_t kMostColumns = 1U << 20U;
constexpr uint64_t kMostContext = 1U << 28U;

struct Shape {
  size_t layers = 0;
  size_t columns = 0;  // of the residual
  size_t feed_forward = 0;
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

// Reads the keys of one family, "llama.block_count" and so on; the first error stays.
class Keys {
 public:
  Keys(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  size_t count(std::string_view key, std::optional<uint64_t> fallback, uint64_t most) {
    const std::string name = prefix_ + std::string(key);
    const auto value = file_.integer(name);
    if (!value) return fail(value.error());
    const std::optional<uint64_t> found = value->has_value() ? *value : fallback;
    if (!found) return fail(invalid_input("{} is missing", name).error());
    if (*found == 0 || *found > most) {
      return fail(invalid_input("{} is {}; it must be from 1 to {}", name, *found, most).error());
    }
    return *found;
  }

  double number(std::string_view key, std::optional<double> fallback) {
    const std::string name = prefix_ + std::string(key);
    const auto value = file_.number(name);
    if (!value) return static_cast<double>(fail(value.error()));
    const std::optional<double> found = value->has_value() ? *value : fallback;
    if (!found) return static_cast<double>(fail(invalid_input("{} is missing", name).error()));
    if (!std::isfinite(*found) || *found <= 0) {
      return static_cast<double>(
          fail(invalid_input("{} is {}; it must be above 0", name, *found).error()));
    }
    return *found;
  }

  // 0 where it is missing.
  size_t count_or_none(std::string_view key, uint64_t most) {
    const auto value = file_.integer(prefix_ + std::string(key));
    if (value && value->value_or(0) == 0) return 0;
    return count(key, {}, most);
  }

  // By which positions are divided: 0, as some files have it, means not at all.
  double factor(std::string_view key, double fallback) {
    const auto value = file_.number(prefix_ + std::string(key));
    if (value && value->has_value() && **value == 0) return 1;
    return number(key, fallback);
  }

  std::string text(std::string_view key) {
    const auto value = file_.text(prefix_ + std::string(key));
    if (!value) {
      fail(value.error());
      return "";
    }
    return value->value_or("");
  }

  Result<void> result() const {
    if (error_) return std::unexpected(*error_);
    return {};
  }

 private:
  size_t fail(const Error& error) {
    if (!error_) error_ = error;
    return 1;
  }

  const GgufFile& file_;
  std::string prefix_;
  std::optional<Error> error_;
};

Result<Shape> read_shape(const GgufFile& file, const std::string& architecture,
                         const DenseDecoderTraits& traits) {
  Keys keys(file, architecture + ".");
  Shape shape;
  shape.layers = keys.count("block_count", {}, kMostLayers);
  shape.columns = keys.count("embedding_length", {}, kMostColumns);
  shape.feed_forward = keys.count("feed_forward_length", {}, kMostColumns);
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
  const size_t experts = keys.count_or_none("expert_count", kMostColumns);
  if (auto result = keys.result(); !result) return std::unexpected(result.error());

  if (experts > 0) {
    return invalid_input("{}.expert_count is {}: mixtures of experts are not supported",
                         architecture, experts);
  }

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

// Adds the file's tensors to the graph after checking their shapes; the first error stays.
class Tensors {
 public:
  Tensors(const GgufFile& file, Graph& graph) : file_(file), graph_(graph) {}

  WeightId matrix(const std::string& name, size_t rows, size_t columns) {
    const GgufTensor* tensor = find(name, Presence::kRequired);
    if (tensor == nullptr) return kNone;
    if (tensor->dimensions.size() > 2 || tensor->columns() != columns || tensor->rows() != rows) {
      return wrong_shape(*tensor, rows, columns);
    }
    return graph_.add_matrix(name, tensor->format, rows, columns);
  }

  WeightId vector(const std::string& name, size_t columns, Presence presence) {
    const GgufTensor* tensor = find(name, presence);
    if (tensor == nullptr) return kNone;
    if (tensor->rows() != 1 || tensor->columns() != columns) {
      return wrong_shape(*tensor, 1, columns);
    }
    return graph_.add_vector(name, tensor->format, columns);
  }

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  bool failed() const { return error_.has_value(); }

  Result<void> result() const {
    if (error_) return std::unexpected(*error_);
    return {};
  }

 private:
  const GgufTensor* find(const std::string& name, Presence presence) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr && presence == Presence::kRequired && !error_) {
      error_ = invalid_input("tensor {} is missing", name).error();
    }
    return tensor;
  }

  WeightId wrong_shape(const GgufTensor& tensor, size_t rows, size_t columns) {
    if (!error_) {
      error_ = invalid_input("tensor {} has {} rows of {}; the metadata makes it {} rows of {}",
                             tensor.name, tensor.rows(), tensor.columns(), rows, columns)
                   .error();
    }
    return kNone;
  }

  const GgufFile& file_;
  Graph& graph_;
  std::optional<Error> error_;
};

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

ValueId add_attention(Graph& graph, Tensors& tensors, const Shape& shape,
                      const DenseDecoderTraits& traits, size_t layer, ValueId x) {
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

ValueId add_feed_forward(Graph& graph, Tensors& tensors, const Shape& shape, size_t layer,
                         ValueId x) {
  const std::string block = "blk." + std::to_string(layer) + ".";
  const WeightId norm =
      tensors.vector(block + "ffn_norm.weight", shape.columns, Presence::kRequired);
  const WeightId gate =
      tensors.matrix(block + "ffn_gate.weight", shape.feed_forward, shape.columns);
  const WeightId up = tensors.matrix(block + "ffn_up.weight", shape.feed_forward, shape.columns);
  const WeightId down =
      tensors.matrix(block + "ffn_down.weight", shape.columns, shape.feed_forward);
  if (tensors.failed()) return x;

  const ValueId h = graph.rms_norm(x, norm, shape.epsilon);
  const ValueId gated = graph.matmul(h, gate);
  const ValueId raised = graph.matmul(h, up);
  return graph.add(x, graph.matmul(graph.silu_multiply(gated, raised), down));
}

}  // namespace

Result<Model> build_dense_decoder(const GgufFile& file, const DenseDecoderTraits& traits) {
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

  Tensors tensors(file, graph);
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
