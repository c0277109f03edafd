// The words about a model in listings, logs and metrics.
#pragma once

#include "engine/interface/model_info.h"
#include "engine/interface/options.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"
#include "engine/model/pooling.h"
#include "engine/placement/model_layout.h"

namespace lockstep {

// Everything that follows from the file, the graph, the cache's format and what computes; the rest
// of how it is served is filled in by the engine.
ModelInfo describe_model(const GgufFile& file, const Model& model, const EngineOptions& options,
                         const ModelLayout& layout);

// The context, and how many ranks and workers compute, of all hosts.
void describe_ranks(const ModelLayout& layout, ModelInfo& info);

// Whether the model knows two texts of one sequence apart; some have a table of one segment.
bool has_segments(const Graph& graph);

// Finds out whether the model embeds, ranks and generates, and how embeddings are pooled; writes it
// into `info`, with the reasons where it does not.
RowUse describe_uses(const GgufFile& file, const Model& model, ModelInfo& info);

}  // namespace lockstep
