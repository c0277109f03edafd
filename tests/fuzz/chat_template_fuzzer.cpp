// Any bytes as a chat template, rendered for a conversation within small budgets: it may fail, and
// must do nothing worse. Behind a line "---" may stand a JSON object of variables (messages, tools,
// special tokens, flags), which replace those of the conversation.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/json.h"
#include "engine/text/chat_template.h"

namespace {

constexpr std::string_view kMark = "\n---\n";

const nlohmann::ordered_json& conversation() {
  static const auto variables = nlohmann::ordered_json::parse(R"json({
    "messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": "Grüße, 日本 \"x\"\n"},
      {"role": "assistant", "content": null, "tool_calls": [
        {"id": "abcdefghi", "type": "function",
         "function": {"name": "f", "arguments": {"a": [1, 2.5, true, null], "b": "c"}}}]},
      {"role": "tool", "content": "ok", "tool_call_id": "abcdefghi"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
    "n": 3, "f": 1.5, "s": "a-b c", "l": [3, 1, 2], "d": {"k": "v", "z": 0}})json");
  return variables;
}

nlohmann::ordered_json with_variables(std::string_view text) {
  auto variables = conversation();
  const auto given = lockstep::parse_json(text, {.depth = 12});
  if (!given || !given->is_object()) return variables;
  for (const auto& [name, value] : given->items()) variables[name] = value;
  return variables;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const lockstep::TemplateLimits limits = {
      .depth = 24, .steps = 20'000, .output_bytes = 1U << 16U, .memory_bytes = 1U << 20U};
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find(kMark), input.size());
  const auto compiled = lockstep::ChatTemplate::compile(std::string(input.substr(0, end)), limits);
  if (!compiled) return 0;
  const std::string_view variables = input.substr(std::min(input.size(), end + kMark.size()));
  static_cast<void>(compiled->render(with_variables(variables)));
  return 0;
}
