// Reads a model file's tokenizer.
#pragma once

#include "engine/base/result.h"
#include "engine/model/gguf_file.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

// Reads the keys tokenizer.ggml.*. Fails with kInvalidInput that names the key when one is of the
// wrong type; Tokenizer::make() checks what they say.
Result<TokenizerData> read_tokenizer_data(const GgufFile& file);

}  // namespace lockstep
