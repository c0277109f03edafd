#include "server/api/common/turn_syntax.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/json.h"
#include "server/api/common/text_marks.h"

namespace lockstep {
namespace {

// The bytes of the prompt up to white space at its end.
size_t said_bytes(std::string_view prompt) {
  return prompt.find_last_not_of(kTurnSpace) + 1;
}

constexpr std::string_view kProbeReasoning = "lockstep_reason";
constexpr std::string_view kProbeSystem = "lockstep_system";
constexpr std::string_view kProbeAnswer = "lockstep_answer";

// In which tools are put to a model whose template knows none: most models of today have seen it.
const CallSyntax& general_syntax() {
  return call_syntaxes().front();
}

struct Probe {
  bool with_tools = false;
  bool with_system = false;
  bool opens_turn = false;       // the prompt of an answer
  bool describes = true;         // the tools
  const char* effort = nullptr;  // of a model that is asked not to reason
};

// Renders a question and this answer by the template; empty where it refuses.
std::string render_probe(const Engine& engine, ToolsVariable tools_variable, Json answer,
                         Probe probe) {
  Json messages = Json::array();
  if (probe.with_system) messages.push_back({{"role", "system"}, {"content", kProbeSystem}});
  messages.push_back({{"role", "user"}, {"content", "?"}});
  if (!answer.is_null()) messages.push_back(std::move(answer));
  Json tools = nullptr;
  if (probe.with_tools) {
    Json function = {{"name", kProbeFunction}};
    if (probe.describes) function["description"] = "lockstep";
    function["parameters"] = {{"type", "object"}, {"properties", Json::object()}};
    tools = Json::array({{{"type", "function"}, {"function", std::move(function)}}});
  }
  Json variables = {{"messages", std::move(messages)},
                    {"documents", nullptr},
                    {"add_generation_prompt", probe.opens_turn}};
  if (probe.effort != nullptr) {
    variables["reasoning_effort"] = probe.effort;
    variables["enable_thinking"] = false;
  }
  put_tools(tools_variable, std::move(tools), variables);
  const auto text = engine.render_chat(variables);
  return text ? text->text : "";
}

// The row by whose sign the template's text of a turn with a call is known.
const CallSyntax* find_sign(const Engine& engine, ToolsVariable variable, Json arguments) {
  const Json call = {{"id", "abcdefgh1"},
                     {"type", "function"},
                     {"function", {{"name", kProbeFunction}, {"arguments", std::move(arguments)}}}};
  const std::string text =
      render_probe(engine, variable,
                   {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}},
                   {.with_tools = true});
  for (const CallSyntax& row : call_syntaxes()) {
    if (text.find(row.sign) != std::string::npos) return &row;
  }
  return nullptr;
}

// The row by whose sign the template's text of the tools is known.
const CallSyntax* find_tool_sign(std::string_view text) {
  for (const CallSyntax& row : call_syntaxes()) {
    for (const std::string_view sign : row.tool_signs) {
      if (!sign.empty() && text.find(sign) != std::string_view::npos) return &row;
    }
  }
  return nullptr;
}

// The template's text of the tools, and the variable in which it takes them. A template that does
// not list them does not know them, whatever it makes of calls: nothing then.
std::string list_tools(const Engine& engine, ToolsVariable& variable) {
  for (const ToolsVariable way :
       {ToolsVariable::kTools, ToolsVariable::kXmlTools, ToolsVariable::kFunctions}) {
    std::string listed = render_probe(engine, way, nullptr, {.with_tools = true});
    if (listed.find(kProbeFunction) == std::string::npos) continue;
    variable = way;
    return listed;
  }
  return "";
}

void find_calls(const Engine& engine, ChatFamily& family) {
  const std::string listed = list_tools(engine, family.tools_variable);
  const ToolsVariable variable = family.tools_variable;
  if (!listed.empty()) {
    family.calls = find_sign(engine, variable, {{"a", 1}});
    if (family.calls == nullptr) {
      family.calls = find_sign(engine, variable, "{\"a\": 1}");
      family.text_arguments = family.calls != nullptr;
    }
    if (family.calls == nullptr) {
      family.calls = find_tool_sign(listed);
      family.writes_calls = family.calls == nullptr;
      family.text_arguments = false;
    }
  }
  family.describes_all =
      family.calls != nullptr &&
      render_probe(engine, variable, nullptr, {.with_tools = true, .describes = false}).empty();
  family.general_tools = family.calls == nullptr;
  if (family.general_tools) family.calls = &general_syntax();
  family.messages = family.calls->messages;
}

std::string opening(const ReasoningMarks& marks) {
  return std::string(marks.open);
}

std::string opening(const AnswerMarks& marks) {
  return std::string(marks.lead) + std::string(marks.open);
}

// The marks of the table that stand around the word.
template <typename Marks>
const Marks* find_marks(std::string_view text, std::string_view word,
                        std::span<const Marks> table) {
  const size_t found = text.find(word);
  if (found == std::string_view::npos) return nullptr;
  std::string_view before = text.substr(0, found);
  before = before.substr(0, said_bytes(before));
  const std::string_view behind = without_space(text.substr(found + word.size()));
  for (const Marks& marks : table) {
    const std::string open = opening(marks);
    if (before.ends_with(without_space(open)) && behind.starts_with(marks.close)) return &marks;
  }
  return nullptr;
}

// The marks of the reasoning that the template was given.
const ReasoningMarks* find_reasoning_marks(std::string_view text) {
  return find_marks(text, kProbeReasoning, reasoning_marks());
}

void find_reasoning(const Engine& engine, ChatFamily& family) {
  const ToolsVariable variable = family.tools_variable;
  for (const std::string_view member : {"reasoning_content", "thinking", "reasoning"}) {
    const std::string text = render_probe(
        engine, variable,
        {{"role", "assistant"}, {"content", "!"}, {std::string(member), kProbeReasoning}}, {});
    family.reasoning = find_reasoning_marks(text);
    if (text.find(kProbeReasoning) == std::string::npos) continue;
    family.reasoning_member = member;
    break;
  }
  if (family.reasoning != nullptr) return;
  // Some take it as a part of the content; some never say it again, but open it in the prompt.
  const Json parts = Json::array(
      {{{"type", "thinking"}, {"thinking", kProbeReasoning}}, {{"type", "text"}, {"text", "!"}}});
  family.reasoning = find_reasoning_marks(
      render_probe(engine, variable, {{"role", "assistant"}, {"content", parts}}, {}));
  if (family.reasoning != nullptr) return;
  const std::string prompt = render_probe(engine, variable, nullptr, {.opens_turn = true});
  family.reasoning = find_open_reasoning(prompt);
  // Some write empty reasoning unless they are asked to think.
  if (family.reasoning == nullptr) family.reasoning = find_closed_reasoning(prompt);
}

// Some templates know no effort "none", and write empty reasoning for a little.
void find_least_effort(const Engine& engine, ChatFamily& family) {
  if (family.reasoning == nullptr) return;
  for (const char* const effort : {"none", "minimal", "low"}) {
    const std::string prompt = render_probe(engine, family.tools_variable, nullptr,
                                            {.opens_turn = true, .effort = effort});
    if (find_open_reasoning(prompt) != nullptr) return;
    if (find_closed_reasoning(prompt) == nullptr) continue;
    family.least_effort = effort;
    return;
  }
}

// The control tokens that the family's marks hold.
void find_control_marks(const Tokenizer& tokenizer, ChatFamily& family) {
  const CallSyntax& calls = *family.calls;
  std::vector<std::string_view> marks = {calls.open,           calls.close,
                                         calls.head,           calls.id_end,
                                         calls.number_open,    calls.name_end,
                                         calls.call_end,       calls.pairs.open,
                                         calls.pairs.key_end,  calls.pairs.value_open,
                                         calls.pairs.value_end};
  if (calls.values == ValueSyntax::kGemma) marks.push_back(kGemmaQuote);
  if (family.reasoning != nullptr) {
    marks.insert(marks.end(), {family.reasoning->open, family.reasoning->close});
  }
  if (family.answer != nullptr) {
    marks.insert(marks.end(), {family.answer->open, family.answer->close, family.answer->turn_end});
  }
  if (family.messages != nullptr) {
    const MessageSyntax& messages = *family.messages;
    marks.insert(marks.end(), {messages.start, messages.channel, messages.body});
    marks.insert(marks.end(), messages.ends.begin(), messages.ends.end());
  }
  for (size_t index = 0; index < tokenizer.vocabulary_size(); ++index) {
    const auto token = static_cast<TokenId>(index);
    const std::string_view text = tokenizer.token_text(token);
    const auto holds = [&](std::string_view mark) { return mark.find(text) != mark.npos; };
    if (text.empty() || !tokenizer.piece(token, false).empty() ||
        !std::ranges::any_of(marks, holds)) {
      continue;
    }
    family.marks.push_back({std::string(text), token, tokenizer.ends_generation(token)});
    family.visible_tokens.push_back(token);
  }
}

}  // namespace

const ReasoningMarks* find_open_reasoning(std::string_view prompt) {
  const std::string_view said = prompt.substr(0, said_bytes(prompt));
  for (const ReasoningMarks& marks : reasoning_marks()) {
    if (said.ends_with(marks.open)) return &marks;
  }
  return nullptr;
}

const ReasoningMarks* find_closed_reasoning(std::string_view prompt) {
  std::string_view said = prompt.substr(0, said_bytes(prompt));
  for (const ReasoningMarks& marks : reasoning_marks()) {
    if (!said.ends_with(marks.close)) continue;
    said.remove_suffix(marks.close.size());
    return said.substr(0, said_bytes(said)).ends_with(marks.open) ? &marks : nullptr;
  }
  return nullptr;
}

bool close_reasoning(TracedText& prompt) {
  const ReasoningMarks* const marks = find_open_reasoning(prompt.text);
  if (marks == nullptr) return false;
  prompt.truncate(said_bytes(prompt.text));
  for (const std::string_view part :
       {std::string_view("\n\n"), marks->close, std::string_view("\n\n")}) {
    prompt.append(part, false);
  }
  return true;
}

ChatFamily find_chat_family(const Engine& engine) {
  ChatFamily family;
  if (!engine.has_chat_template()) return family;
  find_calls(engine, family);
  family.system_messages =
      render_probe(engine, family.tools_variable, nullptr, {.with_system = true})
          .find(kProbeSystem) != std::string::npos;
  find_reasoning(engine, family);
  find_least_effort(engine, family);
  family.answer = find_marks(render_probe(engine, family.tools_variable,
                                          {{"role", "assistant"}, {"content", kProbeAnswer}}, {}),
                             kProbeAnswer, answer_marks());
  find_control_marks(engine.tokenizer(), family);
  return family;
}

void put_tools(ToolsVariable variable, Json tools, Json& variables) {
  variables["tools"] = nullptr;
  if (variable == ToolsVariable::kTools) {
    variables["tools"] = std::move(tools);
    return;
  }
  Json functions = Json::array();
  if (tools.is_array()) {
    for (Json& tool : tools) functions.push_back(std::move(tool["function"]));
  }
  if (variable == ToolsVariable::kXmlTools) {
    if (!functions.empty()) variables["xml_tools"] = std::move(functions);
    return;
  }
  variables["functions"] = functions.empty() ? "" : functions.dump(4);
  if (variables.contains("datetime")) return;
  // The day alone: a prompt that differs each second is never in the cache.
  const std::chrono::year_month_day today(
      std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()));
  variables["datetime"] =
      fmt::format("{:04}-{:02}-{:02}", static_cast<int>(today.year()),
                  static_cast<unsigned>(today.month()), static_cast<unsigned>(today.day()));
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
