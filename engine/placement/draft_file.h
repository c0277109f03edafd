// The file of another model that drafts tokens: read and checked against the model's, before any
// machine is looked at.
#pragma once

#include <memory>
#include <string_view>

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

// The name by which the file's drafts are counted: DrafterChoice::stage's.
std::string_view drafter_name(const Model& draft);

// Null where the settings want no drafts by another model, and on a host that follows another,
// which drafts for all at its own places. Sets the settings' draft_model and, as the file is, the
// drafters' stage; the model keeps the rows that the draft reads (Graph::keep()), on all hosts:
// those that follow read the file's header for it. Fails with kInvalidInput that names the file:
// one that cannot be read or built, has another vocabulary, reads rows that the model does not
// have, or cannot share the pages of the model's cache (check_draft_models()).
Result<std::unique_ptr<DraftFile>> open_draft_file(const EngineOptions& options,
                                                   const GgufFile& file, Settings& settings,
                                                   Model& model);

}  // namespace lockstep
