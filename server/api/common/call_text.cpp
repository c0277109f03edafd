// Calls as text, in the syntax of a family whose template does not write them.
#include <string>
#include <utility>

#include "server/api/common/tool_use.h"

namespace lockstep {
namespace {

// Recursion is bounded by the depth of the request's JSON.
std::string python_text(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_null()) return "None";
  if (!value.is_structured()) return to_text(value);
  std::string text;
  for (const auto& [key, part] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += to_text(Json(key)) + ": ";
    text += python_text(part);
  }
  return value.is_array() ? "[" + text + "]" : "{" + text + "}";
}

std::string python_call(const Json& function) {
  std::string arguments;
  for (const auto& [key, value] : function["arguments"].items()) {
    if (!arguments.empty()) arguments += ", ";
    arguments += key + "=" + python_text(value);
  }
  return fmt::format("{}({})", function["name"].get_ref<const std::string&>(), arguments);
}

std::string object_call(const CallSyntax& syntax, const Json& function) {
  return fmt::format("{{\"{}\": {}, \"{}\": {}}}", syntax.name_key, to_text(function["name"]),
                     syntax.arguments, to_text(function["arguments"]));
}

}  // namespace

void write_calls(const CallSyntax& syntax, std::string_view secret, Json& messages) {
  for (Json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end()) continue;
    std::string text;
    for (const Json& call : *calls) {
      if (!text.empty() && !syntax.separator.empty()) text += syntax.separator;
      if (!text.empty() && syntax.separator.empty()) {
        text += fmt::format("{}{}{}", secret, syntax.line, secret);
      }
      const Json& function = call["function"];
      text += syntax.values == ValueSyntax::kPython ? python_call(function)
                                                    : object_call(syntax, function);
    }
    std::string& said = message["content"].get_ref<std::string&>();
    if (!text.empty()) said += fmt::format("{}{}{}", secret, text, secret);
    message.erase("tool_calls");
  }
}

void put_call_marks(const CallSyntax& syntax, std::string_view secret, TracedText& text) {
  TracedText made;
  size_t done = 0;
  bool opens = true;
  for (size_t at = text.text.find(secret); at != std::string::npos;
       at = text.text.find(secret, done)) {
    made.append(text, done, at - done);
    made.append(opens ? fmt::format("{}{}{}", syntax.open, syntax.list_open, syntax.line)
                      : fmt::format("{}{}", syntax.line, syntax.close),
                false);
    opens = !opens;
    done = at + secret.size();
  }
  if (done == 0) return;
  made.append(text, done, text.text.size() - done);
  text = std::move(made);
}

}  // namespace lockstep
