#include "server/api/openai/response_object.h"

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
      {"output_tokens_details", {{"reasoning_tokens", usage.thought_tokens}}},
      {"total_tokens", usage.prompt_tokens + usage.generated_tokens}};
}

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

}  // namespace lockstep
