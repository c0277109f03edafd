// The answers of POST /v1/messages, whole and streamed, and the objects that they consist of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/engine.h"
#include "server/api/common/answer_writer.h"
#include "server/api/common/block_stream.h"
#include "server/api/common/turn_parser.h"

namespace lockstep {

// The members that all parts of one message share.
struct AnthropicHead {
  std::string id;
  std::string model;        // as the request named it
  uint32_t max_tokens = 0;  // as the request asked for
};

// The head of a message that starts now.
AnthropicHead anthropic_head(std::string model, uint32_t max_tokens);

// A message before anything is generated, and one that is complete; `calls`: how many it holds.
Json opening_message(const AnthropicHead& head, const AnswerUsage& usage);
Json finished_message(const AnthropicHead& head, const Output& last, Json content, size_t calls,
                      const AnswerUsage& usage);

// {"stop_reason","stop_sequence"}.
Json message_stop(const AnthropicHead& head, const Output& last, size_t calls);

// Tokens that came from the cache are counted apart from the input.
Json message_usage(const AnswerUsage& usage);

Json text_block(std::string text);
Json thinking_block(std::string text);
Json call_block(const std::string& function, Json input);

// The whole answer of POST /v1/messages: a message with its content blocks.
class MessagesBody final : public BodyWriter {
 public:
  MessagesBody(TurnRules rules, AnthropicHead head)
      : rules_(std::move(rules)), head_(std::move(head)) {}

  std::string body(const std::vector<Output>& whole, const AnswerUsage& usage) override;

 private:
  TurnRules rules_;
  AnthropicHead head_;
};

// The stream of POST /v1/messages: the events that build a message and its content blocks.
class MessagesStream final : public BlockStream {
 public:
  MessagesStream(TurnRules rules, AnthropicHead head);

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

  AnthropicHead head_;
  size_t index_ = 0;  // of the block that is open, or comes next
};

}  // namespace lockstep
