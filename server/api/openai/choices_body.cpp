#include "server/api/openai/choices_body.h"

namespace lockstep {

std::string ChoicesBody::body(const std::vector<Output>& whole, const AnswerUsage& usage) {
  Json choices = Json::array();
  for (size_t index = 0; index < whole.size(); ++index) {
    choices.push_back(format_.choice(index, whole[index]));
  }
  Json body = choices_object(head_, head_.object, std::move(choices));
  body["usage"] = usage_object(usage);
  return to_text(body);
}

}  // namespace lockstep
