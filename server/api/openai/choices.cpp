#include "server/api/openai/choices.h"

#include <ctime>
#include <utility>

#include "server/api/common/random.h"
#include "server/api/openai/endpoints.h"

namespace lockstep {
namespace {

constexpr const char* kDone = "data: [DONE]\n\n";

}  // namespace

AnswerHead answer_head(const ServedModel& model, std::string_view id_prefix, std::string object,
                       std::string chunk_object, std::string model_name) {
  return AnswerHead{.id = random_id(id_prefix),
                    .object = std::move(object),
                    .chunk_object = std::move(chunk_object),
                    .created_seconds = std::time(nullptr),
                    .model = std::move(model_name),
                    .fingerprint = model.engine().model().fingerprint};
}

Json choices_object(const AnswerHead& head, const std::string& object, Json choices) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created_seconds},
          {"model", head.model},
          {"choices", std::move(choices)},
          {"system_fingerprint", head.fingerprint}};
}

Json usage_object(const AnswerUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.generated_tokens},
          {"total_tokens", usage.prompt_tokens + usage.generated_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", usage.reasoning_tokens},
            {"accepted_prediction_tokens", usage.accepted_draft_tokens},
            {"rejected_prediction_tokens", usage.rejected_draft_tokens}}}};
}

// As text from the start: a value for each token would take many times its bytes.
ApiResult<std::vector<std::string>> render_prompts(const ServedModel& model, const AnswerPlan& plan,
                                                   std::string_view id_prefix) {
  std::vector<std::string> texts;
  for (size_t index = 0; index < plan.requests.size(); index += plan.choices) {
    const Request& request = plan.requests[index];
    if (const auto checked = model.engine().check_request(request); !checked) {
      return std::unexpected(model.to_api_error(checked.error()));
    }
    texts.push_back(fmt::format(R"({{"request_id":"{}","token_ids":[{}],"features":null}})",
                                random_id(id_prefix), fmt::join(request.prompt, ",")));
  }
  return texts;
}

std::string ChoicesBody::body(const std::vector<Output>& whole, const AnswerUsage& usage) {
  Json choices = Json::array();
  for (size_t index = 0; index < whole.size(); ++index) {
    choices.push_back(format_.choice(index, whole[index]));
  }
  Json body = choices_object(head_, head_.object, std::move(choices));
  body["usage"] = usage_object(usage);
  return to_text(body);
}

ChoicesStream::ChoicesStream(AnswerHead head, ChoiceFormat& format, size_t choices,
                             bool include_usage)
    : head_(std::move(head)), format_(format), choices_(choices), include_usage_(include_usage) {}

std::string ChoicesStream::opening(const AnswerUsage&) {
  std::string text;
  for (size_t index = 0; index < choices_; ++index) {
    if (const Json opening = format_.opening(index); !opening.is_null()) text += chunk(opening);
  }
  return text;
}

std::string ChoicesStream::news(size_t index, const Output& output) {
  std::string text;
  for (const Json& part : format_.chunks(index, output)) text += chunk(part);
  return text;
}

std::string ChoicesStream::ending(const AnswerUsage& usage) {
  std::string text;
  if (include_usage_) {
    Json body = choices_object(head_, head_.chunk_object, Json::array());
    body["usage"] = usage_object(usage);
    text += event_text(body);
  }
  return text + kDone;
}

std::string ChoicesStream::failure(const ApiError& error) {
  return event_text(error_object(error)) + kDone;
}

std::string ChoicesStream::chunk(const Json& choice) const {
  Json body = choices_object(head_, head_.chunk_object, Json::array({choice}));
  if (include_usage_) body["usage"] = nullptr;
  return event_text(body);
}

}  // namespace lockstep
