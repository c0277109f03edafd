#include <map>
#include <string>
#include <utility>

#include "server/api/common/tool_use.h"

namespace lockstep {
namespace {

constexpr std::string_view kBlankLine = "\n\n";

std::string& content_of(Json& message) {
  return message["content"].get_ref<std::string&>();
}

void append_paragraph(std::string& text, std::string_view more) {
  if (!text.empty()) text += kBlankLine;
  text += more;
}

// Which and how many calls there shall be.
std::string call_hint(const ToolUse& tools) {
  std::string text;
  if (!tools.named.empty()) {
    text = fmt::format("Answer with a call of {}.", tools.named);
  } else if (tools.choice == ToolUse::Choice::kRequired) {
    text = "Answer with a call.";
  } else {
    text = "Where no function helps, answer in plain text.";
  }
  if (tools.parallel) return text + " Several calls follow one another, each within its own marks.";
  return text + " Make one call at a time.";
}

std::string describe(const CallSyntax& syntax, const ToolUse& tools) {
  std::string text =
      "You can call functions. Each line between <tools> and </tools> describes one, "
      "its parameters as a JSON schema:\n<tools>\n";
  for (const Json& tool : template_tools(tools)) text += to_text(tool["function"]) + '\n';
  text += fmt::format(
      "</tools>\nA call is a JSON object with the function's name and its arguments:\n"
      "{0}\n{{\"name\": \"the function's name\", \"{2}\": {{\"a parameter\": \"its "
      "value\"}}}}\n{1}\n"
      "What it gives comes back between <tool_response> and </tool_response>. ",
      syntax.open, syntax.close, syntax.arguments);
  return text + call_hint(tools);
}

std::string call_text(const CallSyntax& syntax, const Json& function) {
  return fmt::format("{}\n{{\"name\": {}, \"{}\": {}}}\n{}", syntax.open, to_text(function["name"]),
                     syntax.arguments, to_text(function["arguments"]), syntax.close);
}

// Rewrites the messages one after the other.
class Rewriter {
 public:
  explicit Rewriter(const CallSyntax& syntax) : syntax_(syntax) {}

  void add(Json message) {
    if (message["role"] == "tool") return add_result(message);
    const bool says_more = after_results_ && message["role"] == "user";
    after_results_ = false;
    if (says_more) return append_paragraph(content_of(written_.back()), content_of(message));
    if (message.contains("tool_calls")) write_calls(message);
    written_.push_back(std::move(message));
  }

  Json take() { return std::move(written_); }

 private:
  void write_calls(Json& message) {
    std::string& text = content_of(message);
    for (const Json& call : message["tool_calls"]) {
      const Json& function = call["function"];
      names_[call["id"].get<std::string>()] = function["name"].get<std::string>();
      if (!text.empty()) text += '\n';
      text += call_text(syntax_, function);
    }
    message.erase("tool_calls");
  }

  void add_result(Json& message) {
    const auto id = message.find("tool_call_id");
    const auto name = id == message.end() ? names_.end() : names_.find(id->get<std::string>());
    Json result = Json::object();
    if (name != names_.end()) result["name"] = name->second;
    result["content"] = std::move(message["content"]);
    const std::string text = fmt::format("<tool_response>\n{}\n</tool_response>", to_text(result));
    if (after_results_) {
      content_of(written_.back()) += '\n' + text;
    } else {
      written_.push_back({{"role", "user"}, {"content", text}});
    }
    after_results_ = true;
  }

  const CallSyntax& syntax_;
  Json written_ = Json::array();
  std::map<std::string, std::string> names_;  // of the functions, by the ids of their calls
  bool after_results_ = false;                // the last message is made of results
};

// Behind what the system says, or, where it may say nothing, before the user's first words.
void tell(const std::string& text, bool system_messages, Json& messages) {
  if (!messages.empty() && messages.front()["role"] == "system") {
    return append_paragraph(content_of(messages.front()), text);
  }
  if (!system_messages) {
    for (Json& message : messages) {
      if (message["role"] != "user") continue;
      std::string& said = content_of(message);
      said = text + std::string(kBlankLine) + said;
      return;
    }
  }
  const Json first = {{"role", system_messages ? "system" : "user"}, {"content", text}};
  messages.insert(messages.begin(), first);
}

}  // namespace

void write_general_tools(const ChatFamily& family, const ToolUse& tools, Json& messages) {
  Rewriter rewriter(*family.calls);
  for (Json& message : messages) rewriter.add(std::move(message));
  messages = rewriter.take();
  if (tools.active()) tell(describe(*family.calls, tools), family.system_messages, messages);
}

}  // namespace lockstep
