// POST /v1/completions.
#include <utility>

#include "server/api/answer.h"
#include "server/api/completion_format.h"
#include "server/api/completion_request.h"
#include "server/api/endpoints.h"

namespace lockstep {
namespace {

constexpr uint32_t kDefaultMaxTokens = 16;  // OpenAI's

ApiResult<void> complete(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  if (auto unready = model.check_ready()) return std::unexpected(*unready);
  const auto body = parse_body(request);
  if (!body) return std::unexpected(body.error());
  const auto completion = parse_completion(*body, model.limits());
  if (!completion) return std::unexpected(completion.error());
  const GenerationParameters& parameters = completion->parameters;
  if (auto unknown = model.check_name(parameters.model)) return std::unexpected(*unknown);
  const auto grammar = compile_structured_output(model, parameters.structured_output);
  if (!grammar) return std::unexpected(grammar.error());

  auto prompts = encode_prompts(*completion, model.engine().tokenizer());
  if (!prompts) return std::unexpected(prompts.error());
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::string> echoed;
  for (EncodedPrompt& prompt : *prompts) {
    tokens.push_back(std::move(prompt.tokens));
    echoed.push_back(std::move(prompt.text));
  }
  auto requests =
      make_requests(parameters, tokens, kDefaultMaxTokens, model.limits(), "prompt", random_seed());
  if (!requests) return std::unexpected(requests.error());
  for (Request& made : *requests) made.grammar = *grammar;

  CompletionFormat format(model.engine().tokenizer(), parameters.request.logprobs,
                          parameters.choices, std::move(echoed), completion->echo);
  ChoicesWriter writer(
      answer_head(model, "cmpl-", "text_completion", "text_completion", parameters.model), format,
      requests->size(), parameters.include_usage);
  answer(model, {std::move(*requests), parameters.choices, parameters.stream}, writer, request,
         response);
  return {};
}

}  // namespace

void post_completions(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  const auto done = complete(model, request, response);
  if (!done) send_error(response, done.error());
}

}  // namespace lockstep
