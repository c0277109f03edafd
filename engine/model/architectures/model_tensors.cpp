#include "engine/model/architectures/model_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace lockstep {

WeightId ModelTensors::matrix(const std::string& name, size_t rows, size_t columns) {
  const GgufTensor* tensor = find(name, Presence::kRequired);
  if (tensor == nullptr) return kNone;
  if (tensor->dimensions.size() > 2) {
    fail(invalid_input("tensor {} is {}; the metadata makes it {} x {}", name,
                       fmt::join(tensor->dimensions, " x "), columns, rows)
             .error());
    return kNone;
  }
  if (tensor->columns() != columns || tensor->rows() != rows) {
    return wrong_shape(*tensor, rows, columns);
  }
  return graph_.add_matrix(name, tensor->format, rows, columns);
}

WeightId ModelTensors::vector(const std::string& name, size_t columns, Presence presence) {
  const GgufTensor* tensor = find(name, presence);
  if (tensor == nullptr) return kNone;
  if (tensor->rows() != 1 || tensor->columns() != columns) {
    return wrong_shape(*tensor, 1, columns);
  }
  return graph_.add_vector(name, tensor->format, columns);
}

std::vector<WeightId> ModelTensors::experts(const std::string& name, size_t count, size_t rows,
                                            size_t columns) {
  return has(name + ".0.weight")
             ? experts_of_their_own(name, count, rows, columns)
             : experts_of_one_tensor(name + "_exps.weight", count, rows, columns);
}

std::vector<WeightId> ModelTensors::experts_of_one_tensor(const std::string& name, size_t count,
                                                          size_t rows, size_t columns) {
  const GgufTensor* tensor = find(name, Presence::kRequired);
  if (tensor == nullptr) return {};
  std::vector<uint64_t> dimensions = tensor->dimensions;
  dimensions.resize(std::max<size_t>(dimensions.size(), 3), 1);  // ends of 1 may be left out
  if (dimensions != std::vector<uint64_t>{columns, rows, count}) {
    fail(invalid_input("tensor {} is {}; the metadata makes it {} x {} x {} experts", name,
                       fmt::join(tensor->dimensions, " x "), columns, rows, count)
             .error());
    return {};
  }
  std::vector<WeightId> experts;
  for (size_t expert = 0; expert < count; ++expert) {
    experts.push_back(graph_.add_matrix(name, tensor->format, rows, columns, expert * rows));
  }
  return experts;
}

std::vector<WeightId> ModelTensors::experts_of_their_own(const std::string& name, size_t count,
                                                         size_t rows, size_t columns) {
  std::vector<WeightId> experts;
  for (size_t expert = 0; expert < count; ++expert) {
    experts.push_back(matrix(fmt::format("{}.{}.weight", name, expert), rows, columns));
    if (failed()) return {};
    const Weight& weight = graph_.weights()[experts.back()];
    const Weight& first = graph_.weights()[experts.front()];
    if (weight.format != first.format) {
      fail(invalid_input(
               "tensor {} is {} and {} is {}; all experts of a layer must have one format",
               weight.name, traits(weight.format).name, first.name, traits(first.format).name)
               .error());
      return {};
    }
  }
  return experts;
}

Result<void> ModelTensors::result() const {
  if (error_) return std::unexpected(*error_);
  return {};
}

const GgufTensor* ModelTensors::find(const std::string& name, Presence presence) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr && presence == Presence::kRequired) {
    fail(invalid_input("tensor {} is missing", name).error());
  }
  return tensor;
}

WeightId ModelTensors::wrong_shape(const GgufTensor& tensor, size_t rows, size_t columns) {
  fail(invalid_input("tensor {} has {} rows of {}; the metadata makes it {} rows of {}",
                     tensor.name, tensor.rows(), tensor.columns(), rows, columns)
           .error());
  return kNone;
}

void ModelTensors::fail(const Error& error) {
  if (!error_) error_ = error;
}

}  // namespace lockstep
