#include "server/api/anthropic/messages_answer.h"

#include <utility>

#include "server/api/anthropic/endpoints.h"
#include "server/api/common/random.h"

namespace lockstep {
namespace {

Json message(const AnthropicHead& head, Json content, Json stop_reason, Json stop_sequence,
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

Json stop_reason(const AnthropicHead& head, const Output& last, size_t calls) {
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

using Kind = TurnEvent::Kind;

std::string event(std::string_view type, Json members) {
  Json data = {{"type", type}};
  data.update(members);
  return event_text(type, data);
}

}  // namespace

AnthropicHead anthropic_head(std::string model, uint32_t max_tokens) {
  return AnthropicHead{
      .id = random_id("msg_"), .model = std::move(model), .max_tokens = max_tokens};
}

Json opening_message(const AnthropicHead& head, const AnswerUsage& usage) {
  return message(head, Json::array(), nullptr, nullptr, message_usage(usage));
}

Json finished_message(const AnthropicHead& head, const Output& last, Json content, size_t calls,
                      const AnswerUsage& usage) {
  return message(head, std::move(content), stop_reason(head, last, calls), stop_sequence(last),
                 message_usage(usage));
}

Json message_stop(const AnthropicHead& head, const Output& last, size_t calls) {
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

std::string MessagesBody::body(const std::vector<Output>& whole, const AnswerUsage& usage) {
  const Output& answer = whole.front();
  const Turn turn = read_turn(rules_, answer.text);
  Json content = Json::array();
  if (!turn.reasoning.empty()) content.push_back(thinking_block(turn.reasoning));
  // An answer of nothing is an empty text; one that ends within its reasoning has no text.
  const bool is_empty = content.empty() && turn.calls.empty();
  if (!turn.text.empty() || is_empty) content.push_back(text_block(turn.text));
  for (const TurnCall& call : turn.calls) {
    auto input = parse_json(call.arguments);
    content.push_back(call_block(call.name, input ? std::move(*input) : Json::object()));
  }
  return to_text(finished_message(head_, answer, std::move(content), turn.calls.size(), usage));
}

MessagesStream::MessagesStream(TurnRules rules, AnthropicHead head)
    : BlockStream(std::move(rules)), head_(std::move(head)) {}

std::string MessagesStream::opening(const AnswerUsage& usage) {
  return event("message_start", {{"message", opening_message(head_, usage)}}) + keep_alive();
}

std::string MessagesStream::keep_alive() {
  return event("ping", Json::object());
}

std::string MessagesStream::open_block(Kind kind, const std::string& function) {
  Json block;
  if (kind == Kind::kCall) {
    block = call_block(function, Json::object());
  } else {
    block = kind == Kind::kReasoning ? thinking_block("") : text_block("");
  }
  return event("content_block_start", {{"index", index_}, {"content_block", std::move(block)}});
}

std::string MessagesStream::delta(Json members) const {
  return event("content_block_delta", {{"index", index_}, {"delta", std::move(members)}});
}

std::string MessagesStream::extend_block(Kind kind, const std::string& text) {
  if (kind == Kind::kCall) return delta({{"type", "input_json_delta"}, {"partial_json", text}});
  if (kind == Kind::kReasoning) return delta({{"type", "thinking_delta"}, {"thinking", text}});
  return delta({{"type", "text_delta"}, {"text", text}});
}

std::string MessagesStream::close_block(Kind kind, bool) {
  std::string events;
  if (kind == Kind::kReasoning) {
    events = delta({{"type", "signature_delta"}, {"signature", ""}});
  }
  events += event("content_block_stop", {{"index", index_}});
  ++index_;
  return events;
}

std::string MessagesStream::ending(const AnswerUsage& usage) {
  return event("message_delta", {{"delta", message_stop(head_, *last(), sound_calls())},
                                 {"usage", message_usage(usage)}}) +
         event("message_stop", Json::object());
}

std::string MessagesStream::failure(const ApiError& error) {
  return event_text("error", anthropic_error_object(error));
}

}  // namespace lockstep
