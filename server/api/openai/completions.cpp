// POST /v1/completions.
#include <utility>

#include "server/api/common/answer.h"
#include "server/api/common/prepare_request.h"
#include "server/api/endpoints.h"
#include "server/api/openai/completion_format.h"
#include "server/api/openai/completion_request.h"

namespace lockstep {
namespace {

constexpr uint32_t kDefaultMaxTokens = 16;  // OpenAI's

// What is left of a request while its answer is made: neither its body nor its prompts.
struct Prepared {
  AnswerPlan plan;
  std::vector<Prompt> echoed;  // each prompt as it came; empty texts without `echo`
  bool echo = false;
  bool skip_special_tokens = true;
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
  if (auto unknown = model.resolve_name(completion->parameters.model)) {
    return std::unexpected(*unknown);
  }
  return completion;
}

ApiResult<Prepared> prepare(const ServedModel& model, const HttpRequest& request) {
  auto completion = parse(model, request);
  if (!completion) return std::unexpected(completion.error());
  const GenerationParameters& parameters = completion->parameters;
  const auto grammar = compile_structured_output(model, parameters.structured_output);
  if (!grammar) return std::unexpected(grammar.error());

  auto prompts = encode_prompts(*completion, model.engine().tokenizer(), model.limits());
  if (!prompts) return std::unexpected(prompts.error());
  auto requests = make_requests(parameters, *prompts, kDefaultMaxTokens, model.limits(), "prompt",
                                random_seed());
  if (!requests) return std::unexpected(requests.error());
  for (Request& made : *requests) made.grammar = *grammar;
  std::vector<Prompt> echoed(prompts->size());
  if (completion->echo) echoed = std::move(completion->prompts);
  const auto& wanted = parameters.structured_output;
  return Prepared{.plan = {.requests = std::move(*requests),
                           .choices = parameters.choices,
                           .stream = parameters.stream,
                           .constraint = wanted ? wanted->parameter : ""},
                  .echoed = std::move(echoed),
                  .echo = completion->echo,
                  .skip_special_tokens = parameters.request.skip_special_tokens,
                  .logprobs = parameters.request.logprobs,
                  .include_usage = parameters.include_usage,
                  .name = *parameters.model};
}

ApiResult<void> complete(ServedModel& model, const HttpRequest& request, HttpResponse& response) {
  auto lease = KeyLease::enter(model, request, response);
  if (!lease) return std::unexpected(lease.error());
  auto prepared = prepare_request(model, request, *lease, [&] { return prepare(model, request); });
  if (!prepared) return std::unexpected(prepared.error());
  AnswerPlan& plan = prepared->plan;
  CompletionFormat format(model.engine().tokenizer(), prepared->logprobs, plan.choices,
                          std::move(prepared->echoed), prepared->echo,
                          prepared->skip_special_tokens);
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
