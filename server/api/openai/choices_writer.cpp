#include "server/api/openai/choices_writer.h"

#include <ctime>
#include <utility>

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

ChoicesWriter::ChoicesWriter(AnswerHead head, ChoiceFormat& format, size_t choices,
                             bool include_usage)
    : head_(std::move(head)), format_(format), choices_(choices), include_usage_(include_usage) {}

std::string ChoicesWriter::opening(const AnswerUsage&) {
  std::string text;
  for (size_t index = 0; index < choices_; ++index) {
    if (const Json opening = format_.opening(index); !opening.is_null()) text += chunk(opening);
  }
  return text;
}

std::string ChoicesWriter::news(size_t index, const Output& output) {
  std::string text;
  for (const Json& part : format_.chunks(index, output)) text += chunk(part);
  return text;
}

std::string ChoicesWriter::ending(const AnswerUsage& usage) {
  std::string text;
  if (include_usage_) {
    Json body = object(head_.chunk_object, Json::array());
    body["usage"] = usage_object(usage);
    text += event_text(body);
  }
  return text + kDone;
}

std::string ChoicesWriter::failure(const ApiError& error) {
  return event_text(error_object(error)) + kDone;
}

Json ChoicesWriter::body(const std::vector<Output>& whole, const AnswerUsage& usage) {
  Json choices = Json::array();
  for (size_t index = 0; index < whole.size(); ++index) {
    choices.push_back(format_.choice(index, whole[index]));
  }
  Json body = object(head_.object, std::move(choices));
  body["usage"] = usage_object(usage);
  return body;
}

Json ChoicesWriter::object(const std::string& name, Json choices) const {
  return {{"id", head_.id},
          {"object", name},
          {"created", head_.created_seconds},
          {"model", head_.model},
          {"choices", std::move(choices)},
          {"system_fingerprint", head_.fingerprint}};
}

std::string ChoicesWriter::chunk(const Json& choice) const {
  Json body = object(head_.chunk_object, Json::array({choice}));
  if (include_usage_) body["usage"] = nullptr;
  return event_text(body);
}

Json usage_object(const AnswerUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.generated_tokens},
          {"total_tokens", usage.prompt_tokens + usage.generated_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.thought_tokens}}}};
}

}  // namespace lockstep
