// The subject of a plan: a model file's headers, and the options as this machine reads them.
#pragma once

#include <memory>

#include "engine/base/result.h"
#include "engine/interface/options.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"
#include "engine/placement/draft_file.h"
#include "engine/placement/machine.h"
#include "engine/placement/settings.h"

namespace lockstep {

struct PlannedModel {
  GgufFile file;
  Model model;
  std::unique_ptr<DraftFile> draft;  // of a smaller model that drafts; null: none
  Settings settings;                 // parsed, and not yet fitted to the model
};

// Reads the headers alone. Fails as its parts do: kInvalidInput for the options and the file.
Result<PlannedModel> open_planned_model(const EngineOptions& options, const Machine& machine);

}  // namespace lockstep
