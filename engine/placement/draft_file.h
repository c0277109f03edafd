// The file of a smaller model that drafts tokens: read and checked against the model's, before any
// machine is looked at.
#pragma once

#include <memory>

#include "engine/base/result.h"
#include "engine/interface/options.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"
#include "engine/placement/settings.h"

namespace lockstep {

struct DraftFile {
  GgufFile file;
  Model model;
};

// Null where the options name no such file, or want no drafts by it, nor by a block of the model's
// own file. Fails with kInvalidInput that
// names the file: one that cannot be read or built, has another vocabulary, or cannot share the
// pages of the model's cache (check_draft_models()); and where several hosts compute.
Result<std::unique_ptr<DraftFile>> open_draft_file(const EngineOptions& options,
                                                   const Settings& settings, const GgufFile& file,
                                                   const Model& model);

}  // namespace lockstep
