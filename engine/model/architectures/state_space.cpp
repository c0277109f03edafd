#include "engine/model/architectures/state_space.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

namespace lockstep {
namespace {

class StateSpaceBuilder {
 public:
  StateSpaceBuilder(Graph& graph, ModelTensors& tensors, const StateSpace& space,
                    const std::string& block, ValueId h)
      : graph_(graph), tensors_(tensors), space_(space), block_(block), h_(h) {}

  // After an error of `tensors` what it returns is of no use.
  ValueId add();

 private:
  struct Halves {
    ValueId x = kNone;
    ValueId open = kNone;  // what gates the results; none: it is yet to be made ...
    Product open_product;  // ... by this
  };
  ValueId multiply(const Product& product) {
    return graph_.matmul(h_, product.weight, product.bias);
  }
  // Convolves what lies from column `first` on among all that is convolved.
  ValueId convolve(ValueId x, size_t first);
  // The norm of each group of heads, or of all columns, which are one.
  ValueId norm(ValueId y);
  // Each returns the scan's gated results.
  ValueId add_mamba2();
  ValueId add_factored();
  Halves add_halves();
  ValueId norm_factor(const char* name, ValueId y);

  Graph& graph_;
  ModelTensors& tensors_;
  const StateSpace& space_;
  const std::string& block_;
  const ValueId h_;
};

ValueId StateSpaceBuilder::convolve(ValueId x, size_t first) {
  const bool is_mamba2 = space_.kind == StateSpaceKind::kMamba2;
  const size_t all = space_.columns + (is_mamba2 ? 2 * space_.group_columns() : 0);
  const std::string name = block_ + "ssm_conv1d";
  const size_t columns = graph_.columns(x);
  const WeightId factors =
      tensors_.rows_of_vector(name + ".weight", all, space_.taps, first, columns);
  const WeightId bias = tensors_.part_of_vector(name + ".bias", all, first, columns);
  if (tensors_.failed()) return x;
  return graph_.activation(ActivationFunction::kSilu, graph_.convolve(x, factors, bias));
}

ValueId StateSpaceBuilder::norm(ValueId y) {
  const size_t groups = space_.heads.key_heads;
  const WeightId weight = tensors_.vector_of_heads(block_ + "ssm_norm.weight", groups,
                                                   space_.columns / groups, Presence::kOptional);
  if (weight == kNone) return y;
  return groups == 1 ? graph_.rms_norm(y, weight, space_.epsilon)
                     : graph_.head_norm(y, weight, space_.epsilon, groups);
}

ValueId StateSpaceBuilder::add() {
  const ValueId made = space_.kind == StateSpaceKind::kMamba2 ? add_mamba2() : add_factored();
  if (tensors_.failed()) return h_;
  const ValueId normed = norm(made);
  const Product output = tensors_.product(block_, {"ssm_out", graph_.columns(h_)}, space_.columns);
  if (tensors_.failed()) return h_;
  return graph_.matmul(normed, output.weight, output.bias);
}

ValueId StateSpaceBuilder::add_mamba2() {
  const size_t heads = space_.heads.value_heads;
  const std::array<ProductName, 5> names = {{{"", space_.columns},
                                             {"", space_.columns},
                                             {"", space_.group_columns()},
                                             {"", space_.group_columns()},
                                             {"", heads}}};
  const std::vector<Product> made = tensors_.products(block_, names, "ssm_in", graph_.columns(h_));
  const auto factors = [&](const char* name) {
    return tensors_.rows_of_vector(block_ + name, heads, 1, 0, heads);
  };
  const WeightId decay = factors("ssm_a");
  const WeightId skip = factors("ssm_d");
  const WeightId bias = tensors_.vector(block_ + "ssm_dt.bias", heads, Presence::kRequired);
  if (tensors_.failed()) return h_;
  const ValueId x = convolve(multiply(made[1]), 0);
  const ValueId b = convolve(multiply(made[2]), space_.columns);
  const ValueId c = convolve(multiply(made[3]), space_.columns + space_.group_columns());
  if (tensors_.failed()) return h_;
  const ValueId y = graph_.scan(x, c, b, multiply(made[4]), decay, bias, skip, space_.heads);
  // The gate's product is made behind the scan, to be cut as its results are.
  return graph_.gate(ActivationFunction::kSilu, multiply(made[0]), y);
}

// The norm of b, of c, or of what steps are made of.
ValueId StateSpaceBuilder::norm_factor(const char* name, ValueId y) {
  const std::string tensor = block_ + name;
  const WeightId weight = tensors_.vector(tensors_.has(tensor) ? tensor : tensor + ".weight",
                                          graph_.columns(y), Presence::kOptional);
  if (weight == kNone && !space_.norms_factors) return y;
  return graph_.rms_norm(y, weight, space_.epsilon);
}

// x and what gates the results, before the convolution. Of PLaMo 2 one product gives both; else the
// gate's is made behind the scan.
StateSpaceBuilder::Halves StateSpaceBuilder::add_halves() {
  if (space_.kind == StateSpaceKind::kMamba1) {
    const std::array<ProductName, 2> names = {{{"", space_.columns}, {"", space_.columns}}};
    const auto made = tensors_.products(block_, names, "ssm_in", graph_.columns(h_));
    if (tensors_.failed()) return {h_, kNone, {}};
    return {multiply(made[0]), kNone, made[1]};
  }
  const Product both = tensors_.product(block_, {"ssm_in", 2 * space_.columns}, graph_.columns(h_));
  if (tensors_.failed()) return {h_, kNone, {}};
  const size_t heads = space_.heads.value_heads;
  const size_t each = space_.columns / heads;
  const ValueId made = multiply(both);
  return {
      graph_.slice_heads(made, heads, each, each), graph_.slice_heads(made, heads, 0, each), {}};
}

ValueId StateSpaceBuilder::add_factored() {
  const size_t heads = space_.heads.value_heads;
  const bool is_mamba1 = space_.kind == StateSpaceKind::kMamba1;
  const std::vector<ProductName> names = {{"", is_mamba1 ? space_.step_columns : space_.dimension},
                                          {"", space_.dimension},
                                          {"", is_mamba1 ? space_.dimension : space_.step_columns}};
  const auto made = tensors_.products(block_, names, "ssm_x", space_.columns);
  const WeightId steps = tensors_.matrix(block_ + "ssm_dt.weight", heads, space_.step_columns);
  const WeightId bias = tensors_.vector(block_ + "ssm_dt.bias", heads, Presence::kRequired);
  const WeightId skip = tensors_.vector(block_ + "ssm_d", heads, Presence::kRequired);
  const WeightId decay =
      is_mamba1 ? tensors_.rows_of_vector(block_ + "ssm_a", heads, space_.dimension, 0, heads)
                : tensors_.vector(block_ + "ssm_a", heads, Presence::kRequired);
  const Halves halves = add_halves();
  if (tensors_.failed()) return h_;
  const ValueId x = convolve(halves.x, 0);
  if (tensors_.failed()) return h_;
  const auto factor = [&](const char* norm, size_t index) {
    return norm_factor(norm, graph_.matmul(x, made[index].weight, made[index].bias));
  };
  const ValueId few = factor("ssm_dt_norm", is_mamba1 ? 0 : 2);
  const ValueId b = factor("ssm_b_norm", is_mamba1 ? 1 : 0);
  const ValueId c = factor("ssm_c_norm", is_mamba1 ? 2 : 1);
  if (tensors_.failed()) return h_;
  const ValueId y =
      graph_.scan(x, c, b, graph_.matmul(few, steps), decay, bias, skip, space_.heads);
  const ValueId open = halves.open == kNone ? multiply(halves.open_product) : halves.open;
  return graph_.gate(ActivationFunction::kSilu, open, y);
}

}  // namespace

Result<StateSpace> read_state_space(ModelKeys& keys, const std::string& architecture,
                                    StateSpaceKind kind, size_t columns) {
  StateSpace space;
  space.kind = kind;
  space.columns = keys.count("ssm.inner_size", {}, kMostColumns);
  space.dimension = keys.count("ssm.state_size", {}, kMostDeltaDimensions);
  space.taps = keys.count("ssm.conv_kernel", {}, kMostTaps, kLeastTaps);
  const size_t rank = keys.count("ssm.time_step_rank", {}, kMostColumns);
  space.heads = {.value_heads = rank, .key_heads = 1};
  switch (kind) {
    case StateSpaceKind::kMamba1:
      space.heads.value_heads = space.columns;
      space.step_columns = rank;
      space.norms_factors = keys.flag("ssm.dt_b_c_rms").value_or(false);
      break;
    case StateSpaceKind::kMamba2:
      space.heads.key_heads = keys.count("ssm.group_count", {}, kMostColumns);
      break;
    case StateSpaceKind::kPlamo2:  // whose files say 0 groups
      space.step_columns = std::max<size_t>(64, columns / 16);
      break;
  }
  if (auto read = keys.result(); !read) return std::unexpected(read.error());
  const size_t heads = space.heads.value_heads;
  if (heads % space.heads.key_heads != 0 || space.columns % heads != 0 ||
      std::lcm(space.columns / heads, kChunkColumns) > kMostScannedColumns) {
    return invalid_input(
        "{}.ssm: group_count is {}, time_step_rank {} and inner_size {}; the second must be a "
        "multiple of the first and the third one of the second, by a number of which {} or less is "
        "a multiple of {}",
        architecture, space.heads.key_heads, heads, space.columns, kMostScannedColumns,
        kChunkColumns);
  }
  return space;
}

ValueId add_state_space(Graph& graph, ModelTensors& tensors, const StateSpace& space,
                        const std::string& block, ValueId h) {
  return StateSpaceBuilder(graph, tensors, space, block, h).add();
}

}  // namespace lockstep
