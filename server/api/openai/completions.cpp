// POST /v1/completions and /v1/completions/render.
#include <fmt/format.h>

#include <utility>

#include "server/api/common/answer.h"
#include "server/api/common/prepare_request.h"
#include "server/api/common/random.h"
#include "server/api/openai/choices.h"
#include "server/api/openai/completion_format.h"
#include "server/api/openai/completion_request.h"
#include "server/api/openai/endpoints.h"

namespace lockstep {
namespace {

constexpr uint32_t kDefaultMaxTokens = 16;  // OpenAI's
constexpr std::string_view kCompletionIdPrefix = "cmpl-";

// The parts of a request that are kept while its answer is made: neither its body nor its prompts.
struct PreparedCompletion {
  AnswerPlan plan;
  std::vector<Prompt> echoed;  // each prompt as it came; empty texts without `echo`
  bool echo = false;
  bool stream = false;
  bool skip_special_tokens = true;
  std::optional<uint32_t> logprobs;
  bool include_usage = false;
  std::string name;  // of the model, as the request has it
};

ApiResult<CompletionRequest> read_completion(const ServedModel& model, const HttpRequest& request) {
  const auto body = read_body(model, request);
  if (!body) return std::unexpected(body.error());
  auto completion = parse_completion(*body, model.limits());
  if (!completion) return completion;
  if (auto unknown = model.resolve_name(completion->parameters.model)) {
    return std::unexpected(*unknown);
  }
  return completion;
}

ApiResult<PreparedCompletion> prepare_completion(const ServedModel& model,
                                                 const HttpRequest& request) {
  auto completion = read_completion(model, request);
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
  const size_t echoed_bytes = bytes_of(echoed);
  const auto& wanted = parameters.structured_output;
  return PreparedCompletion{.plan = {.requests = std::move(*requests),
                                     .choices = parameters.choices,
                                     .slot = parameters.slot,
                                     .constraint = wanted ? wanted->parameter : "",
                                     .kept_bytes = echoed_bytes},
                            .echoed = std::move(echoed),
                            .echo = completion->echo,
                            .stream = parameters.stream,
                            .skip_special_tokens = parameters.request.skip_special_tokens,
                            .logprobs = parameters.request.logprobs,
                            .include_usage = parameters.include_usage,
                            .name = *parameters.model};
}

ApiResult<std::string> render_completion(const ServedModel& model, const HttpRequest& request) {
  const auto prepared = prepare_completion(model, request);
  if (!prepared) return std::unexpected(prepared.error());
  const auto texts = render_prompts(model, prepared->plan, kCompletionIdPrefix);
  if (!texts) return std::unexpected(texts.error());
  return fmt::format("[{}]", fmt::join(*texts, ","));
}

}  // namespace

ApiResult<void> post_completions(Call& call) {
  auto prepared = prepare_request(call, prepare_completion);
  if (!prepared) return std::unexpected(prepared.error());
  AnswerPlan& plan = prepared->plan;
  CompletionFormat format(call.model.engine().tokenizer(), prepared->logprobs, plan.choices,
                          std::move(prepared->echoed), prepared->echo,
                          prepared->skip_special_tokens);
  AnswerHead head = answer_head(call.model, kCompletionIdPrefix, "text_completion",
                                "text_completion", prepared->name);
  if (!prepared->stream) {
    ChoicesBody writer(std::move(head), format);
    return answer_whole(call, std::move(plan), writer);
  }
  ChoicesStream writer(std::move(head), format, plan.requests.size(), prepared->include_usage);
  return answer_stream(call, std::move(plan), writer);
}

ApiResult<void> post_completions_render(Call& call) {
  return answer_prepared(call, render_completion);
}

}  // namespace lockstep
