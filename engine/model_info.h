// What is told about a model in listings, logs and metrics.
#pragma once

#include <string_view>

#include "engine/engine.h"
#include "engine/kernels/profile.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

// Everything that follows from the file, the graph and the cache's format; the rest of how it is
// served is filled in by the engine. `path` gives the name where the file has none.
ModelInfo describe_model(const GgufFile& file, const Model& model, const EngineOptions& options,
                         Profile profile, const ProductFormTable& forms);

}  // namespace lockstep
