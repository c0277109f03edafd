#include "server/api/openai/responses_stream.h"

#include <utility>

#include "server/api/common/random.h"

namespace lockstep {
namespace {

using Kind = TurnEvent::Kind;

}  // namespace

ResponsesStream::ResponsesStream(TurnRules rules, ResponseHead head)
    : BlockStream(std::move(rules)), head_(std::move(head)) {}

std::string ResponsesStream::event(std::string_view type, Json members) {
  Json data = {{"type", type}, {"sequence_number", sequence_number_++}};
  for (auto& [name, value] : members.items()) data[name] = std::move(value);
  return event_text(type, data);
}

std::string ResponsesStream::response_event(std::string_view type, const Json& response) {
  return fmt::format(
      "event: {}\ndata: {{\"type\":\"{}\",\"sequence_number\":{},\"response\":{}}}\n\n", type, type,
      sequence_number_++, with_members(response, head_.echoed));
}

std::string ResponsesStream::tell_progress() {
  if (std::exchange(progress_told_, true)) return "";
  return response_event("response.in_progress",
                        response_object(head_, "in_progress", Json::array()));
}

std::string ResponsesStream::item_event(std::string_view type, Json members) {
  Json all = {{"item_id", item_id_}, {"output_index", items_.size()}};
  all.update(members);
  return event(type, std::move(all));
}

std::string ResponsesStream::opening(const AnswerUsage&) {
  return response_event("response.created", response_object(head_, "in_progress", Json::array()));
}

std::string ResponsesStream::open_block(Kind kind, const std::string& function) {
  text_.clear();
  function_ = function;
  constexpr std::string_view kInProgress = "in_progress";
  if (kind == Kind::kCall) {
    item_id_ = random_id("fc_");
    call_id_ = random_id("call_");
    std::string begun = tell_progress();
    begun += event("response.output_item.added",
                   {{"output_index", items_.size()},
                    {"item", call_item(item_id_, call_id_, function_, "", kInProgress)}});
    return begun;
  }
  item_id_ = random_id(kind == Kind::kReasoning ? "rs_" : "msg_");
  std::string events = tell_progress();
  events += event("response.output_item.added",
                  {{"output_index", items_.size()},
                   {"item", content_item(kind, item_id_, kInProgress, Json::array())}});
  events += item_event("response.content_part.added",
                       {{"content_index", 0}, {"part", content_part(kind, "")}});
  return events;
}

std::string ResponsesStream::extend_block(Kind kind, const std::string& text) {
  text_ += text;
  if (kind == Kind::kCall) {
    return item_event("response.function_call_arguments.delta", {{"delta", text}});
  }
  if (kind == Kind::kReasoning) {
    return item_event("response.reasoning_text.delta", {{"content_index", 0}, {"delta", text}});
  }
  return item_event("response.output_text.delta",
                    {{"content_index", 0}, {"delta", text}, {"logprobs", Json::array()}});
}

std::string ResponsesStream::close_block(Kind kind, bool sound) {
  const std::string_view status = sound ? kItemDone : kItemCut;
  std::string events;
  Json done;
  if (kind == Kind::kCall) {
    done = call_item(item_id_, call_id_, function_, text_, status);
    events = item_event("response.function_call_arguments.done",
                        {{"name", function_}, {"arguments", text_}});
  } else {
    const bool reasoning = kind == Kind::kReasoning;
    const Json whole = content_part(kind, text_);
    done = content_item(kind, item_id_, status, Json::array({whole}));
    Json members = {{"content_index", 0}, {"text", text_}};
    if (!reasoning) members["logprobs"] = Json::array();
    events = item_event(reasoning ? "response.reasoning_text.done" : "response.output_text.done",
                        std::move(members));
    events += item_event("response.content_part.done", {{"content_index", 0}, {"part", whole}});
  }
  events += event("response.output_item.done", {{"output_index", items_.size()}, {"item", done}});
  items_.push_back(std::move(done));
  return events;
}

std::string ResponsesStream::ending(const AnswerUsage& usage) {
  const Json answer = finished_response(head_, *last(), items_, usage);
  const bool complete = answer["status"] == "completed";
  return response_event(complete ? "response.completed" : "response.incomplete", answer);
}

std::string ResponsesStream::failure(const ApiError& error) {
  Json failed = response_object(head_, "failed", items_);
  const char* const code = error.status < 500 ? "invalid_prompt" : "server_error";
  failed["error"] = {{"code", code}, {"message", error.message}};
  return response_event("response.failed", failed);
}

}  // namespace lockstep
