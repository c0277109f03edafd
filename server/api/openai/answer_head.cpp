#include "server/api/openai/answer_head.h"

#include <ctime>
#include <utility>

#include "server/api/common/random.h"

namespace lockstep {

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
          {"completion_tokens_details", {{"reasoning_tokens", usage.thought_tokens}}}};
}

}  // namespace lockstep
