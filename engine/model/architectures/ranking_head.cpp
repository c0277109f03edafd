#include "engine/model/architectures/ranking_head.h"

#include "engine/model/pooling.h"

namespace lockstep {
namespace {

constexpr const char* kHidden = "cls";
constexpr const char* kOutput = "cls.output";

const GgufTensor* find_weight(const GgufFile& file, const std::string& name) {
  return file.find_tensor(name + ".weight");
}

// Its rows are what the file has of them.
ValueId add_product(const GgufFile& file, ModelTensors& tensors, Graph& graph,
                    const std::string& name, ValueId x) {
  const GgufTensor* tensor = find_weight(file, name);
  if (tensor == nullptr || tensors.failed()) return x;
  const Product product = tensors.product("", {name, tensor->rows()}, graph.columns(x));
  return tensors.failed() ? x : graph.matmul(x, product.weight, product.bias);
}

}  // namespace

Result<ModelOutput> read_output(const GgufFile& file, const std::string& architecture,
                                ModelOutput otherwise) {
  const auto type = file.integer(architecture + ".pooling_type");
  if (!type) return std::unexpected(type.error());
  const bool has_head =
      find_weight(file, kHidden) != nullptr || find_weight(file, kOutput) != nullptr;
  if (!type->has_value()) return has_head ? ModelOutput::kScores : otherwise;
  if (**type != kRankPooling) return otherwise;
  if (has_head) return ModelOutput::kScores;
  if (otherwise == ModelOutput::kLogits) return otherwise;
  return invalid_input(
      "{}.pooling_type is 4 (rank), but the file has no tensor cls.weight or cls.output.weight",
      architecture);
}

ValueId add_ranking_head(const GgufFile& file, ModelTensors& tensors, Graph& graph, ValueId x,
                         const RankingHeadTraits& traits) {
  if (find_weight(file, kHidden) != nullptr) {
    x = add_product(file, tensors, graph, kHidden, x);
    x = traits.activation ? graph.activation(*traits.activation, x) : graph.soft_cap(x, 1);  // tanh
    if (traits.norm_epsilon > 0) {
      const WeightId norm = tensors.vector(std::string(kHidden) + ".norm.weight", graph.columns(x),
                                           Presence::kRequired);
      if (tensors.failed()) return x;
      x = graph.layer_norm(x, norm, kNone, traits.norm_epsilon);
    }
  }
  return add_product(file, tensors, graph, kOutput, x);
}

}  // namespace lockstep
