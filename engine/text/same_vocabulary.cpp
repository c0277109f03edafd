#include "engine/text/same_vocabulary.h"

#include <algorithm>
#include <string_view>

namespace lockstep {
namespace {

// By type, or by the name that converters give where a file has no types.
bool is_padding(const TokenizerData& data, size_t token) {
  if (token < data.types.size()) {
    return data.types[token] == static_cast<int64_t>(TokenType::kUnused);
  }
  return data.tokens[token].starts_with("[PAD");
}

}  // namespace

Result<void> check_same_vocabulary(const TokenizerData& model, const TokenizerData& draft) {
  const size_t shared = std::min(model.tokens.size(), draft.tokens.size());
  for (size_t token = 0; token < shared; ++token) {
    if (model.tokens[token] == draft.tokens[token]) continue;
    return invalid_input(
        "the draft model has another vocabulary: its token {} is {}, the model's is {}. A draft "
        "model must have the same tokens by number",
        token, quote_token(draft.tokens[token]), quote_token(model.tokens[token]));
  }
  const TokenizerData& longer = model.tokens.size() > shared ? model : draft;
  for (size_t token = shared; token < longer.tokens.size(); ++token) {
    if (is_padding(longer, token)) continue;
    return invalid_input(
        "the draft model has another vocabulary: {} tokens, the model has {}, and token {} is {}. "
        "A "
        "draft model must have the same tokens by number",
        draft.tokens.size(), model.tokens.size(), token, quote_token(longer.tokens[token]));
  }
  return {};
}

}  // namespace lockstep
