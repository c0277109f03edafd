// Models with blocks that predict further tokens, and such models whose blocks are always right.
#pragma once

#include <filesystem>
#include <string>

#include "engine/model/architecture.h"

namespace lockstep {

// The file's first block, as a model of its own. Throws std::runtime_error with the engine's
// message.
Model predicting_block(const std::string& path);

// Copies a file whose tensors are F32, with other values: the layers add nothing, so that a token's
// successor depends on the token alone, and the block makes of the token what the model does. So
// each token that the block predicts is the model's likeliest one.
void write_foreseeing_copy(const std::filesystem::path& path, const std::filesystem::path& copy);

}  // namespace lockstep
