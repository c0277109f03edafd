#include "server/api/openai/choices_stream.h"

#include <utility>

#include "server/api/openai/error_object.h"

namespace lockstep {
namespace {

constexpr const char* kDone = "data: [DONE]\n\n";

}  // namespace

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
