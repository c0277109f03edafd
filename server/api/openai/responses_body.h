// The whole answer of POST /v1/responses: a response with its items.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/api/common/body_writer.h"
#include "server/api/common/turn_parser.h"
#include "server/api/openai/response_object.h"

namespace lockstep {

class ResponsesBody final : public BodyWriter {
 public:
  ResponsesBody(TurnRules rules, ResponseHead head)
      : rules_(std::move(rules)), head_(std::move(head)) {}

  std::string body(const std::vector<Output>& whole, const AnswerUsage& usage) override;

 private:
  TurnRules rules_;
  ResponseHead head_;
};

}  // namespace lockstep
