// The rows of a model that another one reads, which drafts for it.
#pragma once

#include <vector>

#include "engine/base/result.h"
#include "engine/model/model.h"

namespace lockstep {

// The model's values whose rows are given beside its hidden row or instead of it, in their order:
// to be kept (Graph::keep()). Fails with kInvalidInput that names what the draft reads and what the
// model has: layers, columns, heads or windows that it does not have.
Result<std::vector<ValueId>> given_values(const Model& model, const Model& draft);

}  // namespace lockstep
