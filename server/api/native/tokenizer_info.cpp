// GET /tokenizer_info: what clients that tokenize through this server (lm-eval's) want to know
// first, in vLLM's JSON.
#include "engine/base/json_text.h"
#include "server/api/native/endpoints.h"

namespace lockstep {
namespace {

Json text_of(const Tokenizer& tokenizer, std::optional<TokenId> token) {
  return token ? Json(std::string(tokenizer.token_text(*token))) : Json(nullptr);
}

}  // namespace

ApiResult<void> get_tokenizer_info(Call& call) {
  const Tokenizer& tokenizer = call.model.engine().tokenizer();
  const Json body = {{"tokenizer_class", "lockstep"},
                     {"bos_token", text_of(tokenizer, tokenizer.bos())},
                     {"eos_token", text_of(tokenizer, tokenizer.eos())},
                     {"pad_token", nullptr},
                     {"vocab_size", tokenizer.vocabulary_size()},
                     {"model_max_length", call.model.limits().context_tokens}};
  call.response.send(200, "application/json", to_text(body));
  return {};
}

}  // namespace lockstep
