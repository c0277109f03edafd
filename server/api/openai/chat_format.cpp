#include "server/api/openai/chat_format.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/api/common/outputs.h"
#include "server/api/common/random.h"
#include "server/api/openai/logprobs.h"

namespace lockstep {

namespace {

std::string random_call_id() {
  return random_id("call_");
}

}  // namespace

ChatFormat::ChatFormat(const Tokenizer& tokenizer, bool logprobs, TurnRules rules)
    : tokenizer_(tokenizer), logprobs_(logprobs), rules_(std::move(rules)) {}

ChatFormat::Told& ChatFormat::told(size_t index) {
  while (told_.size() <= index) told_.emplace_back(rules_);
  return told_[index];
}

Json ChatFormat::delta(Told& told, const TurnEvent& event) const {
  switch (event.kind) {
    case TurnEvent::Kind::kText:
      return {{"content", event.text}};
    case TurnEvent::Kind::kReasoning:
      return {{"reasoning_content", event.text}};
    case TurnEvent::Kind::kCall: {
      Json call = {{"index", told.calls++},
                   {"id", random_call_id()},
                   {"type", "function"},
                   {"function", {{"name", event.text}, {"arguments", ""}}}};
      return {{"tool_calls", Json::array({std::move(call)})}};
    }
    case TurnEvent::Kind::kArguments: {
      Json call = {{"index", told.calls - 1}, {"function", {{"arguments", event.text}}}};
      return {{"tool_calls", Json::array({std::move(call)})}};
    }
    case TurnEvent::Kind::kCallEnd:
      if (event.sound) ++told.sound_calls;
      return nullptr;
  }
  return nullptr;
}

Json ChatFormat::chunk(size_t index, Json delta, Json logprobs, Json finish) const {
  return {{"index", index},
          {"delta", std::move(delta)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish)}};
}

Json ChatFormat::opening(size_t index) {
  return chunk(index, {{"role", "assistant"}, {"content", ""}, {"refusal", nullptr}}, nullptr,
               nullptr);
}

std::vector<Json> ChatFormat::chunks(size_t index, const Output& output) {
  Told& choice = told(index);
  std::vector<TurnEvent> events = choice.parser.push(output.text);
  if (output.finish) std::ranges::move(choice.parser.finish(), std::back_inserter(events));
  std::vector<Json> chunks;
  for (const TurnEvent& event : events) {
    Json part = delta(choice, event);
    if (!part.is_null()) chunks.push_back(chunk(index, std::move(part), nullptr, nullptr));
  }
  if (logprobs_) {
    Json logprobs = chat_logprobs(tokenizer_, output);
    if (!logprobs["content"].empty()) {
      if (chunks.empty()) chunks.push_back(chunk(index, {{"content", ""}}, nullptr, nullptr));
      chunks.front()["logprobs"] = std::move(logprobs);
    }
  }
  if (output.finish) {
    Json reason = finish_reason(output);
    if (reason == "stop" && choice.sound_calls > 0) reason = "tool_calls";
    chunks.push_back(chunk(index, Json::object(), nullptr, std::move(reason)));
  }
  return chunks;
}

Json ChatFormat::choice(size_t index, const Output& whole) {
  Turn turn = read_turn(rules_, whole.text);
  Json message = {{"role", "assistant"}, {"content", nullptr}, {"refusal", nullptr}};
  if (!turn.text.empty() || turn.calls.empty()) message["content"] = std::move(turn.text);
  if (!turn.reasoning.empty()) message["reasoning_content"] = std::move(turn.reasoning);
  Json reason = finish_reason(whole);
  if (!turn.calls.empty()) {
    Json calls = Json::array();
    for (TurnCall& call : turn.calls) {
      calls.push_back(
          {{"id", random_call_id()},
           {"type", "function"},
           {"function",
            {{"name", std::move(call.name)}, {"arguments", std::move(call.arguments)}}}});
    }
    message["tool_calls"] = std::move(calls);
    if (reason == "stop") reason = "tool_calls";
  }
  return {{"index", index},
          {"message", std::move(message)},
          {"logprobs", logprobs_ ? chat_logprobs(tokenizer_, whole) : Json(nullptr)},
          {"finish_reason", std::move(reason)}};
}

}  // namespace lockstep
