// A model as a file's architecture makes it, and what it is made from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace lockstep
