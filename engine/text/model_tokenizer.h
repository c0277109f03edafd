// The tokenizer of a model's file.
#pragma once

#include <memory>

#include "engine/base/result.h"
#include "engine/model/gguf_file.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_data.h"

namespace lockstep {

// Reads the keys tokenizer.ggml.*. Fails with kInvalidInput that names the key when one is of the
// wrong type; make_tokenizer() checks what they say.
Result<TokenizerData> read_tokenizer_data(const GgufFile& file);

// Checks everything: ids in range, one score and type per token, byte tokens well formed, merges
// of known tokens, text bounded. Fails with kInvalidInput that names the key and the index.
Result<std::unique_ptr<Tokenizer>> make_tokenizer(TokenizerData data);

}  // namespace lockstep
