// What a model file holds, as JSON for people and scripts: `lockstepd inspect`.
#pragma once

#include "engine/base/json.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

// {"parts", "version", "bytes", "parameters", "formats", "metadata", "tensors"}. An array of the
// metadata that has more than 8 elements is given as {"length", "first"}. Bytes that are not UTF-8
// are replaced, so that the result can always be written.
nlohmann::ordered_json describe(const GgufFile& file);

}  // namespace lockstep
