// POST /tokenize and /detokenize, in vLLM's JSON; llama-server's "content" is taken and given too.
#include <utility>

#include "server/api/chat_request.h"
#include "server/api/endpoints.h"
#include "server/api/logprobs.h"

namespace lockstep {
namespace {

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
  const auto name = fields.text("model");
  if (fields.error()) return fields.error();
  return name ? model.check_name(*name) : std::nullopt;
}

ApiResult<Json> tokenize(const ServedModel& model, const HttpRequest& request) {
  if (auto unready = model.check_ready()) return std::unexpected(*unready);
  const auto body = parse_body(request);
  if (!body) return std::unexpected(body.error());
  JsonFields fields(*body);
  if (auto wrong = check_optional_name(model, fields)) return std::unexpected(*wrong);
  const bool with_texts = fields.boolean("return_token_strs").value_or(false);
  const auto tokens = tokens_of(model, fields);
  if (!tokens) return std::unexpected(tokens.error());
  Json texts = nullptr;
  if (with_texts) {
    texts = Json::array();
    for (const TokenId token : *tokens) {
      texts.push_back(model.engine().tokenizer().token_text(token));
    }
  }
  return Json{{"count", tokens->size()},
              {"max_model_len", model.limits().context_tokens},
              {"tokens", *tokens},
              {"token_strs", std::move(texts)}};
}

ApiResult<Json> detokenize(const ServedModel& model, const HttpRequest& request) {
  if (auto unready = model.check_ready()) return std::unexpected(*unready);
  const auto body = parse_body(request);
  if (!body) return std::unexpected(body.error());
  JsonFields fields(*body);
  if (auto wrong = check_optional_name(model, fields)) return std::unexpected(*wrong);
  const Json* list = fields.array("tokens");
  if (list == nullptr) fields.refuse("tokens", "is required");
  const uint32_t vocabulary_size = model.limits().vocabulary_size;
  std::vector<TokenId> tokens;
  for (const Json& value : list == nullptr ? Json::array() : *list) {
    if (const auto token = token_id(value, vocabulary_size)) {
      tokens.push_back(*token);
    } else {
      fields.refuse("tokens", fmt::format("must be token ids from 0 to {}, not {:.100}",
                                          vocabulary_size - 1, to_text(value)));
    }
  }
  if (fields.error()) return std::unexpected(*fields.error());
  const std::string text = model.engine().tokenizer().decode(tokens, true);
  return Json{{"prompt", text}, {"content", text}};
}

void send(const ApiResult<Json>& result, HttpResponse& response) {
  if (!result) return send_error(response, result.error());
  response.send(200, "application/json", to_text(*result));
}

}  // namespace

void post_tokenize(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  send(tokenize(model, request), response);
}

void post_detokenize(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  send(detokenize(model, request), response);
}

}  // namespace lockstep
