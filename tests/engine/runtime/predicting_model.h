// Blocks that read a model's rows and predict further tokens, those of the model's own file, and
// EAGLE-3's and assistants of another, and such blocks that are always right.
#pragma once

#include <filesystem>
#include <string>

#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

// The file's first block, as a model of its own. Throws std::runtime_error with the engine's
// message.
Model predicting_block(const std::string& path);

// A block and the file of its weights.
struct BlockFile {
  GgufFile file;
  Model model;
};

// Opens a block of the model's own file, where both are one, or a file that drafts for it. Throws
// std::runtime_error with the engine's message.
BlockFile open_block(const std::string& path, const std::string& model_path);

// The model, which keeps the rows that the block reads.
Model model_for(const std::string& model_path, const Model& block);

// Copies of a model and of an EAGLE-3 file for it that lacks table and output matrix, has as many
// heads of keys as of queries, and norms what its residual begins with. The model's layers add
// nothing; the layer attends to the last token alone, and hands on its embedding: each token that
// it drafts is the model's likeliest one.
void write_foreseeing_eagle(const std::string& path, const std::string& model_path,
                            const std::string& copy, const std::string& model_copy);

// Copies of a model and of an assistant for it whose residual is no narrower. The layers of both
// add nothing: each token that the assistant drafts is the model's likeliest one behind the token
// before.
void write_foreseeing_assistant(const std::string& path, const std::string& model_path,
                                const std::string& copy, const std::string& model_copy);

// Copies a file whose tensors are F32, with other values: the layers add nothing, so that a token's
// successor depends on the token alone, and the block makes of the token what the model does. So
// each token that the block predicts is the model's likeliest one.
void write_foreseeing_copy(const std::filesystem::path& path, const std::filesystem::path& copy);

}  // namespace lockstep
