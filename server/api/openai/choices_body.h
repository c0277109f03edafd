// The whole answers of /v1/completions and /v1/chat/completions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/api/common/body_writer.h"
#include "server/api/openai/answer_head.h"
#include "server/api/openai/choice_format.h"

namespace lockstep {

class ChoicesBody final : public BodyWriter {
 public:
  // The format must outlive this.
  ChoicesBody(AnswerHead head, ChoiceFormat& format) : head_(std::move(head)), format_(format) {}

  std::string body(const std::vector<Output>& whole, const AnswerUsage& usage) override;

 private:
  AnswerHead head_;
  ChoiceFormat& format_;
};

}  // namespace lockstep
