// The contents of a model file as JSON for people and scripts: `lockstepd inspect`.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/result.h"

namespace lockstep {

class GgufFile;

// {"model", "parts", "version", "bytes", "parameters", "formats", "metadata", "tensors"}. "model"
// says whether its architecture is read or why not, and what of the file is not loaded; its
// tokenizer is not looked at. An array of the metadata that has more than 8 elements is given as
// {"length", "first"}. Bytes that are not UTF-8 are replaced, so that the result can always be
// written.
nlohmann::ordered_json describe(const GgufFile& file);
// The same of the file at `path`; fails as GgufFile::open() does.
Result<nlohmann::ordered_json> describe_model_file(const std::filesystem::path& path);

// The values of general.architecture that are read, in alphabetical order.
std::vector<std::string_view> architecture_names();

}  // namespace lockstep
