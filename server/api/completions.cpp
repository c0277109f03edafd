// POST /v1/completions.
#include <utility>

#include "server/api/answer.h"
#include "server/api/completion_format.h"
#include "server/api/completion_request.h"
#include "server/api/endpoints.h"
#include "server/api/prepare_request.h"

namespace lockstep {
namespace {

constexpr uint32_t kDefaultMaxTokens = 16;  // OpenAI's

// What is left of a request while its answer is made: neither its body nor its prompts.
struct Prepared {
  AnswerPlan plan;
  std::vector<std::string> echoed;  // of each prompt; empty texts without `echo`
  bool echo = false;
  std::optional<uint32_t> logprobs;
  bool include_usage = false;
  std::string name;  // of the model, as the request has it
};

ApiResult<CompletionRequest> parse(const ServedModel& model, const HttpRequest& request) {
  if (auto unready = model.check_ready()) return std::unexpected(*unready);
  const auto body = parse_body(request);
  if (!body) return std::unexpected(body.error());
  auto completion = parse_completion(*body, model.limits());
  if (!completion) return completion;
  if (auto unknown = model.check_name(completion->parameters.model)) {
    return std::unexpected(*unknown);
  }
  return completion;
}

ApiResult<Prepared> prepare(const ServedModel& model, const HttpRequest& request) {
  const auto completion = parse(model, request);
  if (!completion) return std::unexpected(completion.error());
  const GenerationParameters& parameters = completion->parameters;
  const auto grammar = compile_structured_output(model, parameters.structured_output);
  if (!grammar) return std::unexpected(grammar.error());

  auto prompts = encode_prompts(*completion, model.engine().tokenizer(), model.limits());
  if (!prompts) return std::unexpected(prompts.error());
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::string> echoed;
  for (EncodedPrompt& prompt : *prompts) {
    tokens.push_back(std::move(prompt.tokens));
    echoed.push_back(completion->echo ? std::move(prompt.text) : "");
  }
  auto requests =
      make_requests(parameters, tokens, kDefaultMaxTokens, model.limits(), "prompt", random_seed());
  if (!requests) return std::unexpected(requests.error());
  for (Request& made : *requests) made.grammar = *grammar;
  return Prepared{.plan = {std::move(*requests), parameters.choices, parameters.stream},
                  .echoed = std::move(echoed),
                  .echo = completion->echo,
                  .logprobs = parameters.request.logprobs,
                  .include_usage = parameters.include_usage,
                  .name = parameters.model};
}

ApiResult<void> complete(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  auto lease = KeyLease::enter(model, request, response);
  if (!lease) return std::unexpected(lease.error());
  auto prepared = prepare_request(model, request, [&] { return prepare(model, request); });
  if (!prepared) return std::unexpected(prepared.error());
  AnswerPlan& plan = prepared->plan;
  CompletionFormat format(model.engine().tokenizer(), prepared->logprobs, plan.choices,
                          std::move(prepared->echoed), prepared->echo);
  ChoicesWriter writer(
      answer_head(model, "cmpl-", "text_completion", "text_completion", prepared->name), format,
      plan.requests.size(), prepared->include_usage);
  answer(model, *lease, std::move(plan), writer, request, response);
  return {};
}

}  // namespace

void post_completions(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  const auto done = complete(model, request, response);
  if (!done) send_error(response, done.error());
}

}  // namespace lockstep
