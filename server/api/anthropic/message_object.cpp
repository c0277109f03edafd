#include "server/api/anthropic/message_object.h"

#include <utility>

#include "server/api/common/random.h"

namespace lockstep {
namespace {

Json message(const MessageHead& head, Json content, Json stop_reason, Json stop_sequence,
             Json usage) {
  return {{"id", head.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", head.model},
          {"content", std::move(content)},
          {"stop_reason", std::move(stop_reason)},
          {"stop_sequence", std::move(stop_sequence)},
          {"usage", std::move(usage)}};
}

Json stop_reason(const MessageHead& head, const Output& last, size_t calls) {
  if (last.finish == FinishReason::kLength) {
    // max_tokens was cut to what the context could hold.
    return last.generated_tokens < head.max_tokens ? "model_context_window_exceeded" : "max_tokens";
  }
  if (!last.stop.empty()) return "stop_sequence";
  return calls > 0 ? "tool_use" : "end_turn";
}

Json stop_sequence(const Output& last) {
  return last.stop.empty() ? Json(nullptr) : Json(last.stop);
}

}  // namespace

MessageHead message_head(std::string model, uint32_t max_tokens) {
  return MessageHead{.id = random_id("msg_"), .model = std::move(model), .max_tokens = max_tokens};
}

Json opening_message(const MessageHead& head, const AnswerUsage& usage) {
  return message(head, Json::array(), nullptr, nullptr, message_usage(usage));
}

Json finished_message(const MessageHead& head, const Output& last, Json content, size_t calls,
                      const AnswerUsage& usage) {
  return message(head, std::move(content), stop_reason(head, last, calls), stop_sequence(last),
                 message_usage(usage));
}

Json message_stop(const MessageHead& head, const Output& last, size_t calls) {
  return {{"stop_reason", stop_reason(head, last, calls)}, {"stop_sequence", stop_sequence(last)}};
}

Json message_usage(const AnswerUsage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.generated_tokens}};
}

Json text_block(std::string text) {
  return {{"type", "text"}, {"text", std::move(text)}};
}

Json thinking_block(std::string text) {
  return {{"type", "thinking"}, {"thinking", std::move(text)}, {"signature", ""}};
}

Json call_block(const std::string& function, Json input) {
  return {{"type", "tool_use"},
          {"id", random_id("toolu_")},
          {"name", function},
          {"input", std::move(input)}};
}

}  // namespace lockstep
