// The whole answer of POST /v1/messages: a message with its content blocks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/api/anthropic/message_object.h"
#include "server/api/common/body_writer.h"
#include "server/api/common/turn_parser.h"

namespace lockstep {

class MessagesBody final : public BodyWriter {
 public:
  MessagesBody(TurnRules rules, MessageHead head)
      : rules_(std::move(rules)), head_(std::move(head)) {}

  std::string body(const std::vector<Output>& whole, const AnswerUsage& usage) override;

 private:
  TurnRules rules_;
  MessageHead head_;
};

}  // namespace lockstep
