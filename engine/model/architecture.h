// Families of models: how a file's tensors and metadata become a graph. One file per family in
// architectures/ and one row in the table in architecture.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

struct ModelSource {
  const GgufFile& file;
  size_t context_tokens = 0;  // of the longest sequence as it was asked for; 0: as trained
};

// Tensors of the file that are not loaded, as their part of the model is not run.
struct LeftOutTensors {
  std::string part;  // "blocks 2 to 3, which predict further tokens"
  size_t tensors = 0;
  uint64_t bytes = 0;
};

struct Model {
  Graph graph;
  std::string architecture;  // general.architecture
  size_t trained_context_tokens = 0;
  size_t vocabulary_size = 0;
  size_t layer_count = 0;
  std::vector<LeftOutTensors> left_out = {};
};

struct Architecture {
  std::string_view name;  // general.architecture
  // Fails with kInvalidInput that names the key or tensor that is missing or contradicts another.
  Result<Model> (*build)(const ModelSource& source);
};

std::span<const Architecture> all_architectures();

// Builds the model that the file holds. Fails for an architecture that is not in the table, naming
// the nearest and all that are, and for a file with tensors that the graph does not use, but for
// those that a text model does without: they become Model::left_out, and the log names them.
Result<Model> build_model(const ModelSource& source);

}  // namespace lockstep
