#include "server/api/common/turn_syntax.h"

#include "engine/base/json.h"

namespace lockstep {
namespace {

// The bytes of the prompt up to white space at its end.
size_t said_bytes(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(" \n\t\r");
  return last == std::string_view::npos ? 0 : last + 1;
}

constexpr CallSyntax kRows[] = {
    // Qwen 2.5 and 3, Hermes: <tool_call>{"name": …, "arguments": …}</tool_call>, again and again.
    {.name = "hermes",
     .sign = "<tool_call>\n{\"name\": \"lockstep_probe\"",
     .open = "<tool_call>",
     .list_open = "",
     .separator = "",
     .close = "</tool_call>",
     .arguments = "arguments",
     .bare = false,
     .parallel = true,
     .id_length = 0},
    // Mistral: [TOOL_CALLS][{"name": …, "arguments": …}, …].
    {.name = "mistral",
     .sign = "[TOOL_CALLS]",
     .open = "[TOOL_CALLS]",
     .list_open = "[",
     .separator = ",",
     .close = "]",
     .arguments = "arguments",
     .bare = false,
     .parallel = true,
     .id_length = 9},
    // Llama 3.1 to 3.3: the turn is {"name": …, "parameters": …}, or has it behind <|python_tag|>;
    // several are written with semicolons.
    {.name = "llama-3",
     .sign = "{\"name\": \"lockstep_probe\", \"parameters\":",
     .open = "<|python_tag|>",
     .list_open = "",
     .separator = ";",
     .close = "",
     .arguments = "parameters",
     .bare = true,
     .parallel = false,
     .id_length = 0},
};

constexpr std::string_view kProbeReasoning = "lockstep_reason";
constexpr std::string_view kProbeSystem = "lockstep_system";
// In which tools are put to a model whose template knows none: most models of today have seen it.
constexpr const CallSyntax& kGeneral = kRows[0];

// Renders a question and this answer by the template; empty where it refuses.
std::string render_probe(const Engine& engine, Json answer, bool with_tools,
                         bool with_system = false) {
  Json messages = Json::array();
  if (with_system) messages.push_back({{"role", "system"}, {"content", kProbeSystem}});
  messages.push_back({{"role", "user"}, {"content", "?"}});
  if (!answer.is_null()) messages.push_back(std::move(answer));
  Json tools = nullptr;
  if (with_tools) {
    const Json parameters = {{"type", "object"}, {"properties", Json::object()}};
    tools = Json::array(
        {{{"type", "function"},
          {"function",
           {{"name", kProbeFunction}, {"description", "lockstep"}, {"parameters", parameters}}}}});
  }
  const auto text = engine.render_chat({{"messages", std::move(messages)},
                                        {"tools", std::move(tools)},
                                        {"documents", nullptr},
                                        {"add_generation_prompt", false}});
  return text ? text->text : "";
}

const CallSyntax* find_call_syntax(const Engine& engine) {
  // A template that does not list the tools does not know them, whatever it makes of calls.
  if (render_probe(engine, nullptr, true).find(kProbeFunction) == std::string::npos) return nullptr;
  const Json call = {{"id", "abcdefgh1"},
                     {"type", "function"},
                     {"function", {{"name", kProbeFunction}, {"arguments", {{"a", 1}}}}}};
  const std::string text = render_probe(
      engine, {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}}, true);
  for (const CallSyntax& row : kRows) {
    if (text.find(row.sign) != std::string::npos) return &row;
  }
  return nullptr;
}

}  // namespace

bool ends_in_reasoning(std::string_view prompt) {
  return prompt.substr(0, said_bytes(prompt)).ends_with(kReasoningOpen);
}

bool close_reasoning(TracedText& prompt) {
  if (!ends_in_reasoning(prompt.text)) return false;
  prompt.truncate(said_bytes(prompt.text));
  for (const std::string_view part :
       {std::string_view("\n\n"), kReasoningClose, std::string_view("\n\n")}) {
    prompt.append(part, false);
  }
  return true;
}

std::span<const CallSyntax> call_syntaxes() {
  return kRows;
}

ChatFamily find_chat_family(const Engine& engine) {
  ChatFamily family;
  if (!engine.has_chat_template()) return family;
  family.calls = find_call_syntax(engine);
  family.general_tools = family.calls == nullptr;
  if (family.general_tools) family.calls = &kGeneral;
  family.system_messages =
      render_probe(engine, nullptr, false, true).find(kProbeSystem) != std::string::npos;
  const std::string thinking = render_probe(
      engine, {{"role", "assistant"}, {"content", "!"}, {"reasoning_content", kProbeReasoning}},
      false);
  family.reasoning = thinking.find(fmt::format("{}\n{}\n{}", kReasoningOpen, kProbeReasoning,
                                               kReasoningClose)) != std::string::npos;
  std::vector<std::string_view> marks = {family.calls->open, family.calls->close};
  if (family.reasoning) marks.insert(marks.end(), {kReasoningOpen, kReasoningClose});
  for (const std::string_view mark : marks) {
    const auto token = engine.tokenizer().find(mark);
    if (token && engine.tokenizer().piece(*token, false).empty()) {
      family.visible_tokens.push_back(*token);
    }
  }
  return family;
}

std::string fitting_call_id(const CallSyntax& syntax, const std::string& id) {
  if (syntax.id_length == 0 || id.size() == syntax.id_length) return id;
  // FNV-1a, 64 bits: ids of one conversation shall differ, nothing more.
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char letter : id) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
  }
  return fmt::format("{:016x}", hash).substr(0, syntax.id_length);
}

}  // namespace lockstep
