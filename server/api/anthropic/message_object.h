// The objects that the answers of POST /v1/messages consist of, whole and streamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/base/json_text.h"
#include "engine/engine.h"
#include "server/api/common/answer_usage.h"

namespace lockstep {

// The members that all parts of one message share.
struct MessageHead {
  std::string id;
  std::string model;        // as the request named it
  uint32_t max_tokens = 0;  // as the request asked for
};

// The head of a message that starts now.
MessageHead message_head(std::string model, uint32_t max_tokens);

// A message before anything is generated, and one that is complete; `calls`: how many it holds.
Json opening_message(const MessageHead& head, const AnswerUsage& usage);
Json finished_message(const MessageHead& head, const Output& last, Json content, size_t calls,
                      const AnswerUsage& usage);

// {"stop_reason","stop_sequence"}.
Json message_stop(const MessageHead& head, const Output& last, size_t calls);

// Tokens that came from the cache are counted apart from the input.
Json message_usage(const AnswerUsage& usage);

Json text_block(std::string text);
Json thinking_block(std::string text);
Json call_block(const std::string& function, Json input);

}  // namespace lockstep
