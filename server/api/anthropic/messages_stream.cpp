#include "server/api/anthropic/messages_stream.h"

#include <utility>

#include "server/api/anthropic/error_object.h"

namespace lockstep {
namespace {

using Kind = TurnEvent::Kind;

std::string event(std::string_view type, Json members) {
  Json data = {{"type", type}};
  data.update(members);
  return event_text(type, data);
}

}  // namespace

MessagesStream::MessagesStream(TurnRules rules, MessageHead head)
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
