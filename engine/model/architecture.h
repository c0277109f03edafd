// Families of models: how a file's tensors and metadata become a graph. One file per family in
// architectures/ and one row in the table in architecture.cpp.
#pragma once

#include <span>
#include <string_view>

#include "engine/base/result.h"
#include "engine/model/model.h"

namespace lockstep {

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
