// Families of models: how a file's tensors and metadata become a graph. One file per family in
// architectures/ and one row in the table in architecture.cpp.
#pragma once

#include <cstddef>
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

// Those of files that draft for another model, from its rows (Model::given).
std::span<const Architecture> drafting_architectures();

// Whether the file's architecture is one of them.
bool drafts_for_another(const GgufFile& file);

// Gives such a file the other model's table and output matrix where it has none of its own
// (GgufFile::borrow()), or, of a file that reads embeddings of both, the table as kModelTable. The
// model has a table.
Result<void> borrow_shared_tensors(const GgufFile& model, GgufFile& draft);

// Builds such a file's model, with the tensors that it has borrowed. A token of its sequences is
// the other model's at the same position, as of build_predicting_block(). Fails as build_model(),
// also for a tensor that the graph does not use.
Result<Model> build_drafting_model(const ModelSource& source);

// The number of blocks behind the file's layers that predict further tokens (multi-token
// prediction) and whose tensors are in the file.
Result<size_t> count_predicting_blocks(const GgufFile& file);

// Builds one of them, by its number among them, as a model of its own. A token of its sequences is
// the model's at the same position, and is given the model's hidden row (Model::given.form) of the
// token before it, the first one zeros; its logits are of the token behind. To go on from a token
// that it has predicted it is given its own row of the token before. Its embedding and its output
// matrix are the model's where the file has no others for it. Fails as build_model(), and for
// architectures of which no such block is known.
Result<Model> build_predicting_block(const ModelSource& source, size_t block);

}  // namespace lockstep
