// Whether two models' tokens are the same, by number: then one can draft for the other.
#pragma once

#include "engine/base/result.h"
#include "engine/text/tokenizer_data.h"

namespace lockstep {

// Tokens of one number have one text. A vocabulary that ends earlier is the same if the other one
// has nothing but padding behind: unused tokens. Fails with kInvalidInput that has both sizes, or
// the first number whose texts differ, and both texts. `draft`: of the model that drafts.
Result<void> check_same_vocabulary(const TokenizerData& model, const TokenizerData& draft);

}  // namespace lockstep
