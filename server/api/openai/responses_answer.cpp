#include "server/api/openai/responses_answer.h"

#include <ctime>
#include <utility>

#include "server/api/common/random.h"

namespace lockstep {
namespace {

using Kind = TurnEvent::Kind;

Json usage_json(const AnswerUsage& usage) {
  return {
      {"input_tokens", usage.prompt_tokens},
      {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
      {"output_tokens", usage.generated_tokens},
      {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
      {"total_tokens", usage.prompt_tokens + usage.generated_tokens}};
}

using Kind = TurnEvent::Kind;

using Kind = TurnEvent::Kind;

}  // namespace

ResponseHead response_head(std::string model, std::string echoed) {
  return ResponseHead{.id = random_id("resp_"),
                      .created_seconds = std::time(nullptr),
                      .model = std::move(model),
                      .echoed = std::move(echoed)};
}

Json response_object(const ResponseHead& head, std::string_view status, Json output) {
  return {{"id", head.id},
          {"object", "response"},
          {"created_at", head.created_seconds},
          {"status", status},
          {"completed_at", nullptr},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"model", head.model},
          {"output", std::move(output)}};
}

Json finished_response(const ResponseHead& head, const Output& last, Json output,
                       const AnswerUsage& usage) {
  const bool complete = last.finish != FinishReason::kLength;
  Json answer = response_object(head, complete ? "completed" : "incomplete", std::move(output));
  if (complete) {
    answer["completed_at"] = static_cast<int64_t>(std::time(nullptr));
  } else {
    answer["incomplete_details"] = {{"reason", "max_output_tokens"}};
  }
  answer["usage"] = usage_json(usage);
  return answer;
}

std::string with_members(const Json& object, std::string_view members) {
  std::string text = to_text(object);
  if (members.empty()) return text;
  text.back() = ',';
  text += members;
  text += '}';
  return text;
}

Json content_part(Kind kind, std::string text) {
  if (kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", std::move(text)}};
  return {{"type", "output_text"},
          {"text", std::move(text)},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

Json content_item(Kind kind, const std::string& id, std::string_view status, Json content) {
  if (kind == Kind::kReasoning) {
    return {{"id", id},
            {"type", "reasoning"},
            {"summary", Json::array()},
            {"content", std::move(content)},
            {"status", status}};
  }
  return {{"id", id},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

Json call_item(const std::string& id, const std::string& call_id, const std::string& function,
               std::string arguments, std::string_view status) {
  return {{"id", id},           {"type", "function_call"}, {"status", status},
          {"call_id", call_id}, {"name", function},        {"arguments", std::move(arguments)}};
}

std::string ResponsesBody::body(const std::vector<Output>& whole, const AnswerUsage& usage) {
  const Output& answer = whole.front();
  const Turn turn = read_turn(rules_, answer.text);
  const bool cut = answer.finish == FinishReason::kLength;
  const auto status = [&](Kind kind) { return cut && turn.open == kind ? kItemCut : kItemDone; };
  Json output = Json::array();
  if (!turn.reasoning.empty()) {
    output.push_back(content_item(Kind::kReasoning, random_id("rs_"), status(Kind::kReasoning),
                                  Json::array({content_part(Kind::kReasoning, turn.reasoning)})));
  }
  // As in a stream: an answer that has got no further than reasoning has no message.
  if (!turn.text.empty() || (output.empty() && turn.calls.empty())) {
    output.push_back(content_item(Kind::kText, random_id("msg_"), status(Kind::kText),
                                  Json::array({content_part(Kind::kText, turn.text)})));
  }
  for (const TurnCall& call : turn.calls) {
    output.push_back(
        call_item(random_id("fc_"), random_id("call_"), call.name, call.arguments, kItemDone));
  }
  return with_members(finished_response(head_, answer, std::move(output), usage), head_.echoed);
}

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
