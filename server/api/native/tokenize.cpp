// POST /tokenize and /detokenize, in vLLM's JSON; llama-server's "content" is taken and given too.
#include <string>
#include <utility>

#include "engine/base/json.h"
#include "engine/base/pause_point.h"
#include "server/api/common/chat_request.h"
#include "server/api/common/json_fields.h"
#include "server/api/common/prepare_request.h"
#include "server/api/native/endpoints.h"
#include "server/api/openai/completion_request.h"

namespace lockstep {
namespace {

// The most bytes of text that one answer gives back: far more than a context holds. Some tokens
// stand for a hundred bytes and more, so that a body could ask for a hundred times its own size.
constexpr uint64_t kDetokenizedBytesMax = 8 << 20;

constexpr size_t kTokensPerPause = 64;  // some microseconds

// The ids of what a body asks to be tokenized: "prompt", "content" or "messages".
ApiResult<std::vector<TokenId>> tokens_of(const ServedModel& model, JsonFields& fields) {
  const auto prompt = fields.text("prompt");
  const auto content = fields.text("content");
  const auto special = fields.boolean("add_special_tokens");
  const auto content_special = fields.boolean("add_special");
  const bool parse = fields.boolean("parse_special").value_or(true);
  const bool chat = fields.any("messages") != nullptr;
  const Json variables = chat ? parse_template_variables(fields) : Json();
  if (!chat && !prompt && !content) {
    fields.refuse("prompt", "is required (or \"content\", or \"messages\")");
  }
  if (fields.error()) return std::unexpected(*fields.error());
  if (chat) {
    auto rendered = encode_chat(model, variables);
    if (!rendered) return std::unexpected(rendered.error());
    return std::move(rendered->tokens);
  }
  // vLLM adds the beginning token unless told not to, llama-server only when told to.
  const EncodeOptions options{
      .add_special = prompt ? special.value_or(true) : content_special.value_or(false),
      .parse_special = parse};
  return model.engine().tokenizer().encode(prompt ? *prompt : *content, options);
}

std::optional<ApiError> check_optional_name(const ServedModel& model, JsonFields& fields) {
  auto name = fields.text("model");
  if (fields.error()) return fields.error();
  return model.resolve_name(name);
}

// As text from the start: a value for each token would take many times its bytes.
std::string tokenize_answer(const ServedModel& model, const std::vector<TokenId>& tokens,
                            bool with_texts) {
  std::string text =
      fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}],"token_strs":)", tokens.size(),
                  model.limits().context_tokens, fmt::join(tokens, ","));
  if (!with_texts) return text + "null}";
  text += '[';
  size_t count = 0;
  for (const TokenId token : tokens) {
    if (++count % kTokensPerPause == 0) pause_point();
    text += to_text(Json(model.engine().tokenizer().token_text(token)));
    text += ',';
  }
  if (!tokens.empty()) text.pop_back();
  return text + "]}";
}

ApiResult<std::string> tokenize(const ServedModel& model, const HttpRequest& request) {
  const auto body = read_body(model, request);
  if (!body) return std::unexpected(body.error());
  JsonFields fields(*body);
  if (auto wrong = check_optional_name(model, fields)) return std::unexpected(*wrong);
  const bool with_texts = fields.boolean("return_token_strs").value_or(false);
  const auto tokens = tokens_of(model, fields);
  if (!tokens) return std::unexpected(tokens.error());
  return tokenize_answer(model, *tokens, with_texts);
}

std::vector<TokenId> parse_tokens(JsonFields& fields, uint32_t vocabulary_size) {
  std::vector<TokenId> tokens;
  const Json* list = fields.array("tokens");
  if (list == nullptr) {
    fields.refuse("tokens", "is required");
    return tokens;
  }
  tokens.reserve(list->size());
  for (const Json& value : *list) {
    const auto token = token_id(value, vocabulary_size);
    if (!token) {
      fields.refuse("tokens", fmt::format("must be token ids from 0 to {}, not {:.100}",
                                          vocabulary_size - 1, to_text(value)));
      return {};
    }
    tokens.push_back(*token);
  }
  return tokens;
}

ApiResult<std::string> detokenize(const ServedModel& model, const HttpRequest& request) {
  const auto body = read_body(model, request);
  if (!body) return std::unexpected(body.error());
  JsonFields fields(*body);
  if (auto wrong = check_optional_name(model, fields)) return std::unexpected(*wrong);
  const auto tokens = parse_tokens(fields, model.limits().vocabulary_size);
  if (fields.error()) return std::unexpected(*fields.error());
  const Tokenizer& tokenizer = model.engine().tokenizer();
  uint64_t bytes = 0;
  for (const TokenId token : tokens) bytes += tokenizer.piece(token, true).size();
  if (bytes > kDetokenizedBytesMax) {
    return std::unexpected(bad_parameter(
        "tokens", fmt::format("'tokens': {} ids come to {} bytes of text; this server gives at "
                              "most {} at a time",
                              tokens.size(), bytes, kDetokenizedBytesMax)));
  }
  const std::string text = to_text(Json(tokenizer.decode(tokens, true)));
  return fmt::format(R"({{"prompt":{},"content":{}}})", text, text);
}

Json text_of(const Tokenizer& tokenizer, std::optional<TokenId> token) {
  return token ? Json(std::string(tokenizer.token_text(*token))) : Json(nullptr);
}

ApiResult<std::string> render(const ServedModel& model, const HttpRequest& request) {
  const auto body = read_body(model, request);
  if (!body) return std::unexpected(body.error());
  auto chat = parse_chat(*body, model.limits());
  if (!chat) return std::unexpected(chat.error());
  if (auto unknown = model.resolve_name(chat->parameters.model)) return std::unexpected(*unknown);
  const auto prompt = encode_chat_turn(model, *chat, "messages");
  if (!prompt) return std::unexpected(prompt.error());
  return to_text({{"prompt", prompt->text}, {"count", prompt->tokens.size()}});
}

}  // namespace

ApiResult<void> post_tokenize(Call& call) {
  return answer_prepared(call, tokenize);
}

ApiResult<void> post_detokenize(Call& call) {
  return answer_prepared(call, detokenize);
}

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

ApiResult<void> post_apply_template(Call& call) {
  return answer_prepared(call, render);
}

}  // namespace lockstep
