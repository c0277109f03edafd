#include "engine/model/architectures/model_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep {

WeightId ModelTensors::matrix(const std::string& name, size_t rows, size_t columns) {
  const GgufTensor* tensor = find_matrix(name, rows, columns);
  if (tensor == nullptr) return kNone;
  return graph_.add_matrix(name, tensor->format, rows, columns, 0, scales(name, 1).front());
}

WeightId ModelTensors::matrix_of_heads(const std::string& name, size_t heads, size_t rows,
                                       size_t columns) {
  const GgufTensor* tensor = find_matrices(name, rows, columns, heads, "heads");
  if (tensor == nullptr) return kNone;
  return graph_.add_matrix(name, tensor->format, heads * rows, columns, 0, scales(name, 1).front());
}

WeightId ModelTensors::matrix_alone(const std::string& name, size_t rows, size_t columns) {
  const GgufTensor* tensor = find_matrix(name, rows, columns);
  return tensor == nullptr ? kNone : graph_.add_matrix(name, tensor->format, rows, columns);
}

WeightId ModelTensors::vector(const std::string& name, size_t columns, Presence presence) {
  return find(name, presence) == nullptr ? kNone : part_of_vector(name, columns, 0, columns);
}

WeightId ModelTensors::vector_of_heads(const std::string& name, size_t heads, size_t columns,
                                       Presence presence) {
  return find(name, presence) == nullptr ? kNone : rows_of_vector(name, heads, columns, 0, heads);
}

WeightId ModelTensors::rows_of_vector(const std::string& name, size_t rows, size_t columns,
                                      size_t first, size_t count) {
  const GgufTensor* tensor = find(name, Presence::kRequired);
  if (tensor == nullptr) return kNone;
  if (tensor->rows() != rows || tensor->columns() != columns) {
    wrong_shape(*tensor, rows, columns);
    return kNone;
  }
  const size_t block = traits(tensor->format).block_elements;
  return graph_.add_vector(name, tensor->format, count * columns, first * columns / block);
}

std::optional<float> ModelTensors::number(const std::string& name) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) return std::nullopt;
  if (tensor->rows() != 1 || tensor->columns() != 1) {
    wrong_shape(*tensor, 1, 1);
    return std::nullopt;
  }
  const auto read = read_tensor(file_, *tensor);
  if (!read) {
    fail(read.error());
    return std::nullopt;
  }
  if (!std::isfinite(read->front())) {
    fail(invalid_input("{} holds {}; it must be finite", name, read->front()).error());
    return std::nullopt;
  }
  scale_tensors_.insert(name);
  return read->front();
}

void ModelTensors::leave_out(const std::string& prefix, const std::string& part) {
  for (const GgufTensor* tensor : file_.find_tensors(prefix)) {
    unused_tensors_.emplace(tensor->name, part);
  }
}

WeightId ModelTensors::part_of_vector(const std::string& name, size_t columns, size_t first,
                                      size_t count) {
  const GgufTensor* const found = file_.find_tensor(name);
  if (found == nullptr) return kNone;
  const GgufTensor& tensor = *found;
  if (tensor.rows() != 1 || tensor.columns() != columns) {
    wrong_shape(tensor, 1, columns);
    return kNone;
  }
  const size_t block = traits(tensor.format).block_elements;
  if (first % block != 0 || count % block != 0) {
    fail(invalid_input("tensor {}: its blocks of {} ({}) cannot be cut at {} to {}, a part of it; "
                       "use a file whose biases are F32",
                       name, block, traits(tensor.format).name, first, first + count)
             .error());
    return kNone;
  }
  return graph_.add_vector(name, tensor.format, count, first / block);
}

Product ModelTensors::product(const std::string& block, const ProductName& name, size_t columns,
                              Presence bias) {
  const std::string prefix = block + name.name;
  Product product;
  product.weight = matrix(prefix + ".weight", name.rows, columns);
  product.bias = vector(prefix + ".bias", name.rows, bias);
  return product;
}

// A tensor named as one of the parts (ffn_up) is fused if it is larger than that.
bool ModelTensors::is_fused(const std::string& block, std::span<const ProductName> names,
                            const std::string& fused) const {
  if (names.front().name.empty()) return true;
  const GgufTensor* all = file_.find_tensor(block + fused + ".weight");
  if (all == nullptr || has(block + names.front().name + ".weight")) return false;
  return std::ranges::none_of(names, [&](const ProductName& each) {
    return each.name == fused && all->rows() <= each.rows;
  });
}

std::vector<Product> ModelTensors::products(const std::string& block,
                                            std::span<const ProductName> names,
                                            const std::string& fused, size_t columns,
                                            Presence biases, size_t used) {
  const auto read = names.first(std::min(used, names.size()));
  std::vector<Product> products;
  if (!is_fused(block, names, fused)) {
    for (const ProductName& name : read) {
      products.push_back(product(block, name, columns, biases));
    }
    return products;
  }
  size_t rows = 0;
  for (const ProductName& name : names) rows += name.rows;
  const std::string all = block + fused;
  const GgufTensor* tensor = find_matrix(all + ".weight", rows, columns);
  const float scale = scales(all + ".weight", 1).front();
  const bool has_fused_bias = has(all + ".bias");
  size_t first = 0;
  for (const ProductName& name : read) {
    if (tensor == nullptr || failed()) return std::vector<Product>(read.size());
    Product product;
    product.weight =
        graph_.add_matrix(tensor->name, tensor->format, name.rows, columns, first, scale);
    product.bias = has_fused_bias ? part_of_vector(all + ".bias", rows, first, name.rows)
                                  : vector(block + name.name + ".bias", name.rows, biases);
    products.push_back(product);
    first += name.rows;
  }
  return products;
}

std::vector<WeightId> ModelTensors::experts(const std::string& name, size_t count, size_t rows,
                                            size_t columns) {
  return has(name + ".0.weight")
             ? experts_of_their_own(name, count, rows, columns)
             : experts_of_one_tensor(name + "_exps.weight", count, {rows, rows, 0}, columns);
}

std::vector<std::vector<WeightId>> ModelTensors::experts(std::span<const std::string> names,
                                                         const std::string& fused, size_t count,
                                                         size_t rows, size_t columns) {
  std::vector<std::vector<WeightId>> matrices;
  const std::string all = fused + "_exps.weight";
  for (const std::string& name : names) {
    matrices.push_back(has(all) ? experts_of_one_tensor(all, count,
                                                        {.rows = rows,
                                                         .stride = rows * names.size(),
                                                         .first = rows * matrices.size()},
                                                        columns)
                                : experts(name, count, rows, columns));
  }
  return matrices;
}

std::vector<WeightId> ModelTensors::group_experts(const std::string& tensor, size_t experts,
                                                  size_t group, size_t rows, size_t columns) {
  const std::vector<WeightId> held =
      experts_of_one_tensor(tensor, experts / group, {rows, rows, 0}, columns);
  std::vector<WeightId> matrices;
  for (size_t expert = 0; expert < experts && !held.empty(); ++expert) {
    matrices.push_back(held[expert / group]);
  }
  return matrices;
}

std::vector<WeightId> ModelTensors::experts_of_one_tensor(const std::string& name, size_t count,
                                                          const ExpertRows& rows, size_t columns) {
  const GgufTensor* tensor = find_matrices(name, rows.stride, columns, count, "experts");
  if (tensor == nullptr) return {};
  const std::vector<float> own_scales = scales(name, count);
  std::vector<WeightId> experts;
  for (size_t expert = 0; expert < count; ++expert) {
    experts.push_back(graph_.add_matrix(name, tensor->format, rows.rows, columns,
                                        expert * rows.stride + rows.first, own_scales[expert]));
  }
  return experts;
}

std::vector<WeightId> ModelTensors::expert_biases(const std::string& name, size_t count,
                                                  size_t columns) {
  const std::string tensor_name = name + "_exps.bias";
  const GgufTensor* tensor = find(tensor_name, Presence::kOptional);
  if (tensor == nullptr) return {};
  if (tensor->rows() != count || tensor->columns() != columns) {
    wrong_shape(*tensor, count, columns);
    return {};
  }
  const size_t row_blocks = columns / traits(tensor->format).block_elements;
  std::vector<WeightId> biases;
  for (size_t expert = 0; expert < count; ++expert) {
    biases.push_back(graph_.add_vector(tensor_name, tensor->format, columns, expert * row_blocks));
  }
  return biases;
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

std::vector<float> ModelTensors::scales(std::string weight, size_t count) {
  std::vector<float> none(count, 1.0F);
  const std::string name = weight.replace(weight.rfind('.'), std::string::npos, ".scale");
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) return none;
  if (tensor->rows() != 1 || tensor->columns() != count) {
    fail(invalid_input("tensor {} is {}; expected {}: one scale for each matrix of {}.weight", name,
                       fmt::join(tensor->dimensions, " x "), count, name.substr(0, name.rfind('.')))
             .error());
    return none;
  }
  auto read = read_tensor(file_, *tensor);
  if (!read) {
    fail(read.error());
    return none;
  }
  for (size_t matrix = 0; matrix < count; ++matrix) {
    if (std::isfinite((*read)[matrix])) continue;
    fail(invalid_input("{} holds {} at {}; it must be finite", name, (*read)[matrix], matrix)
             .error());
    return none;
  }
  scale_tensors_.insert(name);
  return *std::move(read);
}

const GgufTensor* ModelTensors::find(const std::string& name, Presence presence) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr && presence == Presence::kRequired) {
    fail(invalid_input("tensor {} is missing", name).error());
  }
  return tensor;
}

const GgufTensor* ModelTensors::find_matrix(const std::string& name, size_t rows, size_t columns) {
  const GgufTensor* tensor = find(name, Presence::kRequired);
  if (tensor == nullptr) return nullptr;
  if (tensor->dimensions.size() > 2) {
    fail(invalid_input("tensor {} is {}; the metadata makes it {} x {}", name,
                       fmt::join(tensor->dimensions, " x "), columns, rows)
             .error());
    return nullptr;
  }
  const bool fits = tensor->columns() == columns && tensor->rows() == rows;
  return fits ? tensor : wrong_shape(*tensor, rows, columns);
}

const GgufTensor* ModelTensors::find_matrices(const std::string& name, size_t rows, size_t columns,
                                              size_t count, std::string_view of) {
  const GgufTensor* tensor = find(name, Presence::kRequired);
  if (tensor == nullptr) return nullptr;
  std::vector<uint64_t> dimensions = tensor->dimensions;
  dimensions.resize(std::max<size_t>(dimensions.size(), 3), 1);
  if (dimensions == std::vector<uint64_t>{columns, rows, count}) return tensor;
  fail(invalid_input("tensor {} is {}; the metadata makes it {} x {} x {} {}", name,
                     fmt::join(tensor->dimensions, " x "), columns, rows, count, of)
           .error());
  return nullptr;
}

// Returns nullptr.
const GgufTensor* ModelTensors::wrong_shape(const GgufTensor& tensor, size_t rows, size_t columns) {
  fail(invalid_input("tensor {} has {} rows of {}; the metadata makes it {} rows of {}",
                     tensor.name, tensor.rows(), tensor.columns(), rows, columns)
           .error());
  return nullptr;
}

void ModelTensors::fail(const Error& error) {
  if (!error_) error_ = error;
}

}  // namespace lockstep
