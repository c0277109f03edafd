// The answers of POST /v1/messages: a message with its content blocks, the events that build it,
// and Anthropic's errors.
#pragma once

#include <string>
#include <vector>

#include "server/api/common/block_writer.h"

namespace lockstep {

class MessagesWriter final : public BlockWriter {
 public:
  // `model`: as the request named it. `max_tokens`: what it asked for.
  MessagesWriter(TurnRules rules, std::string model, uint32_t max_tokens);

  std::string opening(const AnswerUsage& usage) override;
  std::string ending(const AnswerUsage& usage) override;
  std::string failure(const ApiError& error) override;
  std::string keep_alive() override;
  Json body(const std::vector<Output>& whole, const AnswerUsage& usage) override;
  void refuse(HttpResponse& response, const ApiError& error) override;

 protected:
  std::string open_block(TurnEvent::Kind kind, const std::string& function) override;
  std::string extend_block(TurnEvent::Kind kind, const std::string& text) override;
  std::string close_block(TurnEvent::Kind kind, bool sound) override;

 private:
  Json message(Json content, Json stop_reason, Json stop_sequence, Json usage) const;
  Json stop_reason(const Output& last, size_t calls) const;
  std::string delta(Json members) const;

  std::string id_ = random_id("msg_");
  std::string model_;
  uint32_t max_tokens_;
  size_t index_ = 0;  // of the block that is open, or comes next
};

// {"type":"error","error":{"type","message"}}, and the answer that holds it.
Json anthropic_error_object(const ApiError& error);
void send_anthropic_error(HttpResponse& response, const ApiError& error);

}  // namespace lockstep
