#include "engine/model/architectures/delta_net.h"

#include <array>

namespace lockstep {
namespace {

constexpr size_t kUsualInterval = 4;
// The norms of queries and keys have it; files do not say it.
constexpr float kKimiEpsilon = 1e-6F;

// Values of a layer that the delta net and its gate read.
struct DeltaInputs {
  ValueId queries = kNone;
  ValueId keys = kNone;
  ValueId values = kNone;
  ValueId gate = kNone;
  ValueId beta = kNone;
  ValueId alpha = kNone;
};

class DeltaBuilder {
 public:
  DeltaBuilder(Graph& graph, ModelTensors& tensors, const DeltaNet& net, const std::string& block,
               ValueId h)
      : graph_(graph), tensors_(tensors), net_(net), block_(block), h_(h) {}

  ValueId add();

 private:
  ValueId multiply(const Product& product) {
    return graph_.matmul(h_, product.weight, product.bias);
  }
  // Columns [first, first + count) of each key head.
  ValueId slice(ValueId x, size_t first, size_t count) {
    return graph_.slice_heads(x, net_.heads.key_heads, first, count);
  }
  void add_products();
  void add_old_products();
  void add_factors();
  ValueId add_with_row_decays();
  ValueId multiply_twice(const std::string& narrow, const std::string& wide);
  ValueId convolve_alone(const Product& product, const std::string& name);
  // Convolves what lies from column `first` on among all that is convolved.
  ValueId convolve(ValueId x, size_t first);

  Graph& graph_;
  ModelTensors& tensors_;
  const DeltaNet& net_;
  const std::string& block_;
  const ValueId h_;
  DeltaInputs inputs_;
  Product gate_;  // made behind the delta net, to be cut as its results are
};

void DeltaBuilder::add_products() {
  const std::string fused = "attn_qkv";
  const std::array<ProductName, 3> names = {
      {{fused + "[0]", net_.keys()}, {fused + "[1]", net_.keys()}, {fused + "[2]", net_.values()}}};
  const auto made = tensors_.products(block_, names, fused, graph_.columns(h_));
  const Product gate = tensors_.product(block_, {"attn_gate", net_.values()}, graph_.columns(h_));
  if (tensors_.failed()) return;
  inputs_.queries = multiply(made[0]);
  inputs_.keys = multiply(made[1]);
  inputs_.values = multiply(made[2]);
  gate_ = gate;
}

void DeltaBuilder::add_old_products() {
  const size_t all = 2 * net_.keys() + 2 * net_.values();
  const Product product = tensors_.product(block_, {"ssm_in", all}, graph_.columns(h_));
  if (tensors_.failed()) return;
  const ValueId x = multiply(product);
  const size_t key = net_.dimension;
  const size_t value = net_.values() / net_.heads.key_heads;
  inputs_.queries = slice(x, 0, key);
  inputs_.keys = slice(x, key, key);
  inputs_.values = slice(x, 2 * key, value);
  inputs_.gate = slice(x, 2 * key + value, value);
}

void DeltaBuilder::add_factors() {
  const size_t heads = net_.heads.value_heads;
  const size_t columns = graph_.columns(h_);
  if (!tensors_.has(block_ + "ssm_ba.weight")) {
    const Product beta = tensors_.product(block_, {"ssm_beta", heads}, columns);
    const Product alpha = tensors_.product(block_, {"ssm_alpha", heads}, columns);
    if (tensors_.failed()) return;
    inputs_.beta = multiply(beta);
    inputs_.alpha = multiply(alpha);
    return;
  }
  const Product both = tensors_.product(block_, {"ssm_ba", 2 * heads}, columns);
  if (tensors_.failed()) return;
  const ValueId x = multiply(both);
  const size_t group = heads / net_.heads.key_heads;
  inputs_.beta = slice(x, 0, group);
  inputs_.alpha = slice(x, group, group);
}

// Multiplies with the narrow matrix and then with the wide one.
ValueId DeltaBuilder::multiply_twice(const std::string& narrow, const std::string& wide) {
  const size_t between = net_.dimension;
  const WeightId first = tensors_.matrix(block_ + narrow, between, graph_.columns(h_));
  const WeightId second = tensors_.matrix(block_ + wide, net_.values(), between);
  return tensors_.failed() ? h_ : graph_.matmul(graph_.matmul(h_, first), second);
}

ValueId DeltaBuilder::convolve_alone(const Product& product, const std::string& name) {
  const ValueId x = multiply(product);
  const size_t columns = graph_.columns(x);
  const WeightId factors = tensors_.rows_of_vector(block_ + name, columns, net_.taps, 0, columns);
  if (tensors_.failed()) return x;
  return graph_.activation(ActivationFunction::kSilu, graph_.convolve(x, factors));
}

ValueId DeltaBuilder::add_with_row_decays() {
  const size_t heads = net_.heads.value_heads;
  const size_t columns = graph_.columns(h_);
  const std::array<ProductName, 3> names = {
      {{"attn_q", net_.keys()}, {"attn_k", net_.keys()}, {"attn_v", net_.values()}}};
  const std::vector<Product> made = tensors_.products(block_, names, "attn_qkv", columns);
  const Product beta = tensors_.product(block_, {"ssm_beta", heads}, columns);
  const WeightId decay = tensors_.rows_of_vector(block_ + "ssm_a", heads, 1, 0, heads);
  const WeightId bias =
      tensors_.vector(block_ + "ssm_dt.bias", heads * net_.dimension, Presence::kRequired);
  const WeightId norm =
      tensors_.vector(block_ + "ssm_norm.weight", net_.value_dimension, Presence::kRequired);
  const Product output = tensors_.product(block_, {"attn_output", columns}, net_.values());
  if (tensors_.failed()) return h_;
  const ValueId queries = convolve_alone(made[0], "ssm_conv1d_q.weight");
  const ValueId keys = convolve_alone(made[1], "ssm_conv1d_k.weight");
  const ValueId values = convolve_alone(made[2], "ssm_conv1d_v.weight");
  const ValueId alpha = multiply_twice("ssm_f_a.weight", "ssm_f_b.weight");
  const ValueId open = multiply_twice("ssm_g_a.weight", "ssm_g_b.weight");
  if (tensors_.failed()) return h_;
  const ValueId y =
      graph_.delta_net(values, queries, keys, multiply(beta), alpha, decay, bias, net_.heads);
  const ValueId normed = graph_.head_norm(y, norm, net_.norm_epsilon, heads);
  return graph_.matmul(graph_.gate(ActivationFunction::kSigmoid, open, normed), output.weight,
                       output.bias);
}

ValueId DeltaBuilder::convolve(ValueId x, size_t first) {
  const size_t all = 2 * net_.keys() + net_.values();
  const WeightId factors = tensors_.rows_of_vector(block_ + "ssm_conv1d.weight", all, net_.taps,
                                                   first, graph_.columns(x));
  if (tensors_.failed()) return x;
  return graph_.activation(ActivationFunction::kSilu, graph_.convolve(x, factors));
}

ValueId DeltaBuilder::add() {
  if (net_.has_row_decays) return add_with_row_decays();
  const size_t heads = net_.heads.value_heads;
  const bool is_old = tensors_.has(block_ + "ssm_in.weight");
  is_old ? add_old_products() : add_products();
  if (tensors_.failed()) return h_;
  add_factors();
  const WeightId decay = tensors_.vector(block_ + "ssm_a", heads, Presence::kRequired);
  const WeightId bias = tensors_.vector(block_ + "ssm_dt.bias", heads, Presence::kRequired);
  const WeightId norm =
      tensors_.vector(block_ + "ssm_norm.weight", net_.value_dimension, Presence::kRequired);
  const Product output = tensors_.product(block_, {"ssm_out", graph_.columns(h_)}, net_.values());
  if (tensors_.failed()) return h_;
  const ValueId queries = convolve(inputs_.queries, 0);
  const ValueId keys = convolve(inputs_.keys, net_.keys());
  const ValueId values = convolve(inputs_.values, 2 * net_.keys());
  if (tensors_.failed()) return h_;
  const ValueId y =
      graph_.delta_net(values, queries, keys, inputs_.beta, inputs_.alpha, decay, bias, net_.heads);
  const ValueId normed = graph_.head_norm(y, norm, net_.norm_epsilon, heads);
  const ValueId open = is_old ? inputs_.gate : multiply(gate_);
  const ValueId gated = graph_.gate(ActivationFunction::kSilu, open, normed);
  return graph_.matmul(gated, output.weight, output.bias);
}

}  // namespace

Result<DeltaNet> read_delta_net(ModelKeys& keys, const std::string& architecture, bool is_tiled) {
  DeltaNet net;
  net.heads.is_tiled = is_tiled;
  net.heads.key_heads = keys.count("ssm.group_count", {}, kMostColumns);
  net.heads.value_heads = keys.count("ssm.time_step_rank", {}, kMostColumns);
  net.dimension = keys.count("ssm.state_size", {}, kMostDeltaDimensions);
  net.taps = keys.count("ssm.conv_kernel", {}, kMostTaps);
  const size_t values = keys.count("ssm.inner_size", {}, kMostColumns);
  if (auto read = keys.result(); !read) return std::unexpected(read.error());
  const size_t heads = net.heads.value_heads;
  if (heads % net.heads.key_heads != 0 || values % (heads * kHeadBlock) != 0 ||
      net.taps < kLeastTaps) {
    return invalid_input(
        "{}.ssm: group_count is {}, time_step_rank {}, inner_size {} and conv_kernel {}; the "
        "second "
        "must be a multiple of the first, the third one of {} times the second, and the last at "
        "least {}",
        architecture, net.heads.key_heads, heads, values, net.taps, kHeadBlock, kLeastTaps);
  }
  net.value_dimension = values / heads;
  return net;
}

Result<DeltaNet> read_kimi_delta_net(ModelKeys& keys, const std::string& architecture,
                                     size_t heads) {
  DeltaNet net;
  net.has_row_decays = true;
  net.heads.key_heads = net.heads.value_heads = heads;
  net.heads.epsilon = kKimiEpsilon;
  net.dimension = keys.count("kda.head_dim", {}, kMostDeltaDimensions);
  net.value_dimension = net.dimension;
  net.taps = keys.count("ssm.conv_kernel", {}, kMostTaps, kLeastTaps);
  if (auto read = keys.result(); !read) return std::unexpected(read.error());
  if (net.dimension % kHeadBlock != 0) {
    return invalid_input("{}.kda.head_dim is {}; known are multiples of {}", architecture,
                         net.dimension, kHeadBlock);
  }
  return net;
}

std::vector<bool> read_recurrent_layers(ModelKeys& keys, size_t layers) {
  const size_t interval = keys.count("full_attention_interval", kUsualInterval, kMostLayers);
  return keys.pattern("attention.recurrent_layers", layers, interval, /*is_first=*/false);
}

ValueId add_delta_net(Graph& graph, ModelTensors& tensors, const DeltaNet& net,
                      const std::string& block, ValueId h) {
  return DeltaBuilder(graph, tensors, net, block, h).add();
}

}  // namespace lockstep
