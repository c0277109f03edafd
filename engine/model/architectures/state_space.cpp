#include "engine/model/architectures/state_space.h"

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

  ValueId add();

 private:
  ValueId multiply(const Product& product) {
    return graph_.matmul(h_, product.weight, product.bias);
  }
  // Convolves what lies from column `first` on among all that is convolved.
  ValueId convolve(ValueId x, size_t first);
  // The norm of each group of heads, or of all columns, which are one.
  ValueId norm(ValueId y);

  Graph& graph_;
  ModelTensors& tensors_;
  const StateSpace& space_;
  const std::string& block_;
  const ValueId h_;
};

ValueId StateSpaceBuilder::convolve(ValueId x, size_t first) {
  const size_t all = space_.columns + 2 * space_.group_columns();
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
  const Product output = tensors_.product(block_, {"ssm_out", graph_.columns(h_)}, space_.columns);
  if (tensors_.failed()) return h_;
  const ValueId x = convolve(multiply(made[1]), 0);
  const ValueId b = convolve(multiply(made[2]), space_.columns);
  const ValueId c = convolve(multiply(made[3]), space_.columns + space_.group_columns());
  if (tensors_.failed()) return h_;
  const ValueId y = graph_.scan(x, c, b, multiply(made[4]), decay, bias, skip, space_.heads);
  // The gate's product is made behind the scan, to be cut as its results are.
  const ValueId gated = graph_.gate(ActivationFunction::kSilu, multiply(made[0]), y);
  const ValueId normed = norm(gated);
  if (tensors_.failed()) return h_;
  return graph_.matmul(normed, output.weight, output.bias);
}

}  // namespace

Result<StateSpace> read_state_space(ModelKeys& keys, const std::string& architecture) {
  StateSpace space;
  space.heads.key_heads = keys.count("ssm.group_count", {}, kMostColumns);
  space.heads.value_heads = keys.count("ssm.time_step_rank", {}, kMostColumns);
  space.dimension = keys.count("ssm.state_size", {}, kMostDeltaDimensions);
  space.taps = keys.count("ssm.conv_kernel", {}, kMostTaps, kLeastTaps);
  space.columns = keys.count("ssm.inner_size", {}, kMostColumns);
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
