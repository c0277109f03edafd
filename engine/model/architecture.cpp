#include "engine/model/architecture.h"

#include <array>
#include <set>
#include <string>

#include "engine/model/architectures/rows.h"
#include "engine/model/in_quotes.h"

namespace lockstep {
namespace {

constexpr std::array kArchitectures = {
    Architecture{"llama", build_llama},
    Architecture{"qwen2", build_qwen2},
    Architecture{"qwen3", build_qwen3},
    Architecture{"qwen3moe", build_qwen3moe},
};

// Tensors that are read while the graph is built and need no place in it.
constexpr std::string_view kRotaryFactors = "rope_freqs.weight";

// A tensor that nobody uses means that the file's model is not the one we would compute.
Result<void> check_all_used(const GgufFile& file, const Graph& graph) {
  std::set<std::string_view> used = {kRotaryFactors};
  for (const Weight& weight : graph.weights()) used.insert(weight.name);
  for (const GgufTensor& tensor : file.tensors()) {
    if (used.contains(tensor.name)) continue;
    return invalid_input(
        "tensor {} has no place in this architecture as it is known here: the file needs a newer "
        "version, or is not what general.architecture says",
        in_quotes(tensor.name));
  }
  return {};
}

// Adapters and projectors name the architecture that they go with.
Result<void> check_is_model(const GgufFile& file) {
  const auto type = file.text("general.type");
  if (!type) return std::unexpected(type.error());
  if (!type->has_value() || **type == "model") return {};
  return invalid_input(
      "general.type is {}: the file is no model by itself{}; give the model's own file",
      in_quotes(**type),
      **type == "adapter" ? ", but an adapter (LoRA), which must be merged into its model first"
                          : "");
}

}  // namespace

std::span<const Architecture> all_architectures() {
  return kArchitectures;
}

Result<Model> build_model(const GgufFile& file) {
  if (auto is_model = check_is_model(file); !is_model) return std::unexpected(is_model.error());
  const auto name = file.text("general.architecture");
  if (!name) return std::unexpected(name.error());
  if (!name->has_value()) {
    return invalid_input("general.architecture is missing: the file does not say what it holds");
  }
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == **name) {
      auto model = architecture.build(file);
      if (!model) return model;
      if (auto used = check_all_used(file, model->graph); !used) {
        return std::unexpected(used.error());
      }
      return model;
    }
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return invalid_input("architecture {} is not known here; known are: {}", in_quotes(**name),
                       known);
}

}  // namespace lockstep
