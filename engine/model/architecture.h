// Families of models: how a file's tensors and metadata become a graph. One file per family in
// architectures/ and one row in the table in architecture.cpp.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

struct Model {
  Graph graph;
  std::string architecture;  // general.architecture
  size_t trained_context_tokens = 0;
  size_t vocabulary_size = 0;
};

struct Architecture {
  std::string_view name;  // general.architecture
  // Fails with kInvalidInput that names the key or tensor that is missing or contradicts another.
  Result<Model> (*build)(const GgufFile& file);
};

std::span<const Architecture> all_architectures();

// Builds the model that the file holds. Fails for an architecture that is not in the table, listing
// those that are, and for a file that holds tensors the graph does not use.
Result<Model> build_model(const GgufFile& file);

}  // namespace lockstep
