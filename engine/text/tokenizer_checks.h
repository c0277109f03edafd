// The checks of a file's tokenizer before one is made of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/base/result.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

// Ids in range, one score and type per token, byte tokens well formed, texts bounded. Merges and
// names are checked where they are looked up. kInvalidInput names the key and the index.
Result<void> check_tokenizer_data(const TokenizerData& data);

// The byte of a token written "<0xNN>", if it is written so.
std::optional<uint8_t> parse_byte_token(std::string_view text);

// `text` for an error message: valid UTF-8, at most 80 bytes of it.
std::string quote_token(std::string_view text);

}  // namespace lockstep
