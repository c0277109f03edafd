// What is told about a model in listings, logs and metrics.
#pragma once

#include <filesystem>

#include "engine/engine.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

// Everything that follows from the file and the graph; how it is served is filled in by the engine.
ModelInfo describe_model(const GgufFile& file, const Model& model,
                         const std::filesystem::path& path);

}  // namespace lockstep
