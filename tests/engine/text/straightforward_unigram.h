// Unigrams as they are defined: the whole text is normalized, and the best way to each of its
// places is kept.
#pragma once

#include <string_view>
#include <vector>

#include "engine/text/tokenizer_data.h"

namespace lockstep {

// The tokens that a vocabulary of the kind "t5" makes of a text, without those at its ends.
// `data` is good; its ids of unknown tokens and its flags are set.
std::vector<TokenId> straightforward_unigrams(const TokenizerData& data, std::string_view text);

}  // namespace lockstep
