// The stream of POST /v1/messages: the events that build a message and its content blocks.
#pragma once

#include <cstddef>
#include <string>

#include "server/api/anthropic/message_object.h"
#include "server/api/common/block_stream.h"

namespace lockstep {

class MessagesStream final : public BlockStream {
 public:
  MessagesStream(TurnRules rules, MessageHead head);

  std::string opening(const AnswerUsage& usage) override;
  std::string ending(const AnswerUsage& usage) override;
  std::string failure(const ApiError& error) override;
  std::string keep_alive() override;

 protected:
  std::string open_block(TurnEvent::Kind kind, const std::string& function) override;
  std::string extend_block(TurnEvent::Kind kind, const std::string& text) override;
  std::string close_block(TurnEvent::Kind kind, bool sound) override;

 private:
  std::string delta(Json members) const;

  MessageHead head_;
  size_t index_ = 0;  // of the block that is open, or comes next
};

}  // namespace lockstep
