// Any bytes as a chat template, rendered for one conversation within small budgets: it may fail,
// and must do nothing worse.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/text/chat_template.h"

namespace {

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const lockstep::TemplateLimits limits = {
      .depth = 24, .steps = 20'000, .output_bytes = 1U << 16U, .memory_bytes = 1U << 20U};
  const auto compiled = lockstep::ChatTemplate::compile(
      std::string(reinterpret_cast<const char*>(data), size), limits);
  if (compiled) static_cast<void>(compiled->render(conversation()));
  return 0;
}
