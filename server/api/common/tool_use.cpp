#include "server/api/common/tool_use.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

constexpr size_t kToolsMax = 128;  // OpenAI's
constexpr size_t kNameBytesMax = 64;

bool is_function_name(std::string_view name) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  return !name.empty() && name.size() <= kNameBytesMax &&
         name.find_first_not_of(kLetters) == std::string_view::npos;
}

// `nested`: whether a tool's function is an object of its own, {"function": {…}}.
void parse_functions(JsonFields& fields, bool nested, ToolUse& tools) {
  const Json* list = fields.array("tools");
  if (list == nullptr) return;
  if (list->size() > kToolsMax) {
    fields.refuse("tools", fmt::format("must have at most {}, not {}", kToolsMax, list->size()));
  }
  for (size_t index = 0; index < list->size() && !fields.error(); ++index) {
    const std::string path = fmt::format("tools[{}]", index);
    const Json& given = (*list)[index];
    if (!given.is_object()) {
      fields.refuse(path, fmt::format("must be an object, not {}", kind_name(given)));
      return;
    }
    JsonFields tool(given, path + ".");
    if (const auto type = tool.text("type"); type != "function") {
      tool.refuse("type", "must be \"function\"; this server knows no other tools");
    }
    const Json* inner = nested ? tool.object("function") : &given;
    if (inner == nullptr) tool.refuse("function", "is required");
    if (inner != nullptr && !tool.error()) {
      JsonFields function(*inner, nested ? path + ".function." : path + ".");
      add_function(tools, function, function.object("parameters"));
      tool.adopt(function);
    }
    fields.adopt(tool);
  }
}

void parse_choice(JsonFields& fields, bool nested, ToolUse& tools) {
  const Json* choice = fields.any("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_object()) {
    JsonFields object(*choice, "tool_choice.");
    if (object.text("type") != "function") object.refuse("type", "must be \"function\"");
    const Json* inner = nested ? object.object("function") : choice;
    if (inner == nullptr) object.refuse("function", "is required");
    if (inner != nullptr && !object.error()) {
      JsonFields function(*inner, nested ? "tool_choice.function." : "tool_choice.");
      tools.named = function.text("name").value_or("");
      if (tools.named.empty()) function.refuse("name", "is required");
      object.adopt(function);
    }
    tools.choice = ToolUse::Choice::kRequired;
    fields.adopt(object);
  } else if (*choice == "none") {
    tools.choice = ToolUse::Choice::kNone;
  } else if (*choice == "required") {
    tools.choice = ToolUse::Choice::kRequired;
  } else if (*choice != "auto") {
    fields.refuse("tool_choice",
                  "must be \"none\", \"auto\", \"required\" or an object that names a function");
  }
  check_tool_choice(fields, "tool_choice", tools);
}

ToolUse parse_tools(JsonFields& fields, bool nested) {
  ToolUse tools;
  parse_functions(fields, nested, tools);
  parse_choice(fields, nested, tools);
  tools.parallel = fields.boolean("parallel_tool_calls").value_or(true);
  return tools;
}

}  // namespace

std::vector<std::string> ToolUse::names() const {
  std::vector<std::string> names;
  for (const ToolFunction& function : functions) {
    if (named.empty() || function.name == named) names.push_back(function.name);
  }
  return names;
}

ToolUse parse_chat_tools(JsonFields& fields) {
  return parse_tools(fields, true);
}

ToolUse parse_response_tools(JsonFields& fields) {
  return parse_tools(fields, false);
}

void add_function(ToolUse& tools, JsonFields& tool, const Json* parameters) {
  ToolFunction function;
  function.name = tool.text("name").value_or("");
  function.description = tool.text("description").value_or("");
  if (parameters != nullptr) function.parameters = *parameters;
  if (!is_function_name(function.name)) {
    tool.refuse("name",
                fmt::format("must be 1 to {} letters, digits, '_', '-' and '.'", kNameBytesMax));
  }
  const auto same = [&](const ToolFunction& other) { return other.name == function.name; };
  if (std::ranges::any_of(tools.functions, same)) {
    tool.refuse("name", fmt::format("\"{}\" is there twice", function.name));
  }
  tools.functions.push_back(std::move(function));
}

void check_tool_choice(JsonFields& fields, std::string_view name, const ToolUse& tools) {
  if (tools.choice != ToolUse::Choice::kRequired) return;
  if (tools.functions.empty()) fields.refuse(name, "needs tools");
  if (tools.names().empty()) {
    fields.refuse(name, fmt::format("names no function of the tools: \"{:.64}\"", tools.named));
  }
}

Json template_tools(const ToolUse& tools, bool describes_all) {
  if (!tools.active()) return nullptr;
  Json list = Json::array();
  for (const ToolFunction& function : tools.functions) {
    Json inner = {{"name", function.name}};
    if (!function.description.empty() || describes_all) inner["description"] = function.description;
    if (!function.parameters.is_null()) inner["parameters"] = function.parameters;
    if (describes_all && function.parameters.is_null()) {
      inner["parameters"] = {{"type", "object"}, {"properties", Json::object()}};
    }
    list.push_back({{"type", "function"}, {"function", std::move(inner)}});
  }
  return list;
}

Json parse_call_arguments(JsonFields& fields, std::string_view name) {
  const Json* value = fields.any(name);
  if (value == nullptr) return Json::object();
  if (value->is_object()) return *value;
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    if (text.empty()) return Json::object();
    if (auto parsed = parse_json(text); parsed && parsed->is_object()) return std::move(*parsed);
  }
  fields.refuse(name, "must be the JSON text of an object");
  return nullptr;
}

Json template_call(std::string id, std::string name, Json arguments) {
  return {{"id", std::move(id)},
          {"type", "function"},
          {"function", {{"name", std::move(name)}, {"arguments", std::move(arguments)}}}};
}

}  // namespace lockstep
