#include "server/api/anthropic/messages_writer.h"

#include <utility>

namespace lockstep {
namespace {

using Kind = TurnEvent::Kind;

struct ErrorType {
  int status;
  std::string_view type;
};

// Anthropic's names.
constexpr ErrorType kErrorTypes[] = {{400, "invalid_request_error"}, {401, "authentication_error"},
                                     {403, "permission_error"},      {404, "not_found_error"},
                                     {413, "request_too_large"},     {429, "rate_limit_error"},
                                     {503, "overloaded_error"},      {504, "timeout_error"}};

std::string_view error_type(int status) {
  for (const ErrorType& row : kErrorTypes) {
    if (row.status == status) return row.type;
  }
  return status < 500 ? "invalid_request_error" : "api_error";
}

// What came from the cache is counted apart from the input.
Json usage_json(const AnswerUsage& usage) {
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

std::string event(std::string_view type, Json members) {
  Json data = {{"type", type}};
  data.update(members);
  return event_text(type, data);
}

}  // namespace

Json anthropic_error_object(const ApiError& error) {
  return {{"type", "error"},
          {"error", {{"type", error_type(error.status)}, {"message", error.message}}}};
}

void send_anthropic_error(HttpResponse& response, const ApiError& error) {
  if (error.retry_after_seconds) {
    response.set_header("Retry-After", std::to_string(*error.retry_after_seconds));
  }
  response.send(error.status, "application/json", to_text(anthropic_error_object(error)));
}

MessagesWriter::MessagesWriter(TurnRules rules, std::string model, uint32_t max_tokens)
    : BlockWriter(std::move(rules)), model_(std::move(model)), max_tokens_(max_tokens) {}

Json MessagesWriter::message(Json content, Json stop_reason, Json stop_sequence, Json usage) const {
  return {{"id", id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model_},
          {"content", std::move(content)},
          {"stop_reason", std::move(stop_reason)},
          {"stop_sequence", std::move(stop_sequence)},
          {"usage", std::move(usage)}};
}

Json MessagesWriter::stop_reason(const Output& last, size_t calls) const {
  if (last.finish == FinishReason::kLength) {
    // max_tokens was cut to what the context could hold.
    return last.generated_tokens < max_tokens_ ? "model_context_window_exceeded" : "max_tokens";
  }
  if (!last.stop.empty()) return "stop_sequence";
  return calls > 0 ? "tool_use" : "end_turn";
}

std::string MessagesWriter::opening(const AnswerUsage& usage) {
  return event("message_start",
               {{"message", message(Json::array(), nullptr, nullptr, usage_json(usage))}}) +
         keep_alive();
}

std::string MessagesWriter::keep_alive() {
  return event("ping", Json::object());
}

std::string MessagesWriter::open_block(Kind kind, const std::string& function) {
  Json block;
  if (kind == Kind::kCall) {
    block = call_block(function, Json::object());
  } else {
    block = kind == Kind::kReasoning ? thinking_block("") : text_block("");
  }
  return event("content_block_start", {{"index", index_}, {"content_block", std::move(block)}});
}

std::string MessagesWriter::delta(Json members) const {
  return event("content_block_delta", {{"index", index_}, {"delta", std::move(members)}});
}

std::string MessagesWriter::extend_block(Kind kind, const std::string& text) {
  if (kind == Kind::kCall) return delta({{"type", "input_json_delta"}, {"partial_json", text}});
  if (kind == Kind::kReasoning) return delta({{"type", "thinking_delta"}, {"thinking", text}});
  return delta({{"type", "text_delta"}, {"text", text}});
}

std::string MessagesWriter::close_block(Kind kind, bool) {
  std::string events;
  if (kind == Kind::kReasoning) {
    events = delta({{"type", "signature_delta"}, {"signature", ""}});
  }
  events += event("content_block_stop", {{"index", index_}});
  ++index_;
  return events;
}

std::string MessagesWriter::ending(const AnswerUsage& usage) {
  const std::string& stop = last()->stop;
  const Json change = {{"stop_reason", stop_reason(*last(), sound_calls())},
                       {"stop_sequence", stop.empty() ? Json(nullptr) : Json(stop)}};
  return event("message_delta", {{"delta", change}, {"usage", usage_json(usage)}}) +
         event("message_stop", Json::object());
}

std::string MessagesWriter::failure(const ApiError& error) {
  return event_text("error", anthropic_error_object(error));
}

Json MessagesWriter::body(const std::vector<Output>& whole, const AnswerUsage& usage) {
  const Output& answer = whole.front();
  const Turn turn = read_turn(rules(), answer.text);
  Json content = Json::array();
  if (!turn.reasoning.empty()) content.push_back(thinking_block(turn.reasoning));
  // An answer of nothing is an empty text; one that ends within its thoughts has no text.
  const bool is_empty = content.empty() && turn.calls.empty();
  if (!turn.text.empty() || is_empty) content.push_back(text_block(turn.text));
  for (const TurnCall& call : turn.calls) {
    auto input = parse_json(call.arguments);
    content.push_back(call_block(call.name, input ? std::move(*input) : Json::object()));
  }
  return message(std::move(content), stop_reason(answer, turn.calls.size()),
                 answer.stop.empty() ? Json(nullptr) : Json(answer.stop), usage_json(usage));
}

void MessagesWriter::refuse(HttpResponse& response, const ApiError& error) {
  send_anthropic_error(response, error);
}

}  // namespace lockstep
