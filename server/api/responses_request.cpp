#include "server/api/responses_request.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view kRoles[] = {"user", "assistant", "system", "developer"};
constexpr std::string_view kTextTypes[] = {"input_text", "output_text", "text"};

// What asks for stored state, or for what this server does not do.
constexpr std::string_view kUnsupported[] = {
    "previous_response_id", "conversation", "background", "prompt", "top_logprobs", "n",
    "max_tool_calls"};

// Builds the messages that a template takes from items.
class Conversation {
 public:
  void add(std::string role, std::string content) {
    messages_.push_back({{"role", std::move(role)}, {"content", std::move(content)}});
  }

  // Instructions and a system message are one system message: most templates take no second.
  void add_system(std::string content) {
    if (messages_.size() == 1 && messages_.back()["role"] == "system") {
      messages_.back()["content"].get_ref<std::string&>() += "\n\n" + content;
    } else {
      add("system", std::move(content));
    }
  }

  // Calls belong to the assistant's message before them, if there is one.
  void add_call(Json call) {
    if (messages_.empty() || messages_.back()["role"] != "assistant") add("assistant", "");
    messages_.back()["tool_calls"].push_back(std::move(call));
  }

  void add_result(std::string id, std::string content) {
    add("tool", std::move(content));
    messages_.back()["tool_call_id"] = std::move(id);
  }

  Json take() { return std::move(messages_); }

 private:
  Json messages_ = Json::array();
};

void parse_message_item(JsonFields& item, Conversation& conversation) {
  const std::string role = item.text("role").value_or("");
  if (std::ranges::find(kRoles, role) == std::end(kRoles)) {
    item.refuse("role",
                fmt::format("must be one of {}, not \"{:.40}\"", fmt::join(kRoles, ", "), role));
  }
  if (item.any("content") == nullptr) item.refuse("content", "is required");
  std::string content = parse_text_content(item, "content", kTextTypes);
  if (role == "system" || role == "developer") {
    conversation.add_system(std::move(content));
  } else {
    conversation.add(role, std::move(content));
  }
}

void parse_call_item(JsonFields& item, Conversation& conversation) {
  const auto id = item.text("call_id");
  const auto name = item.text("name");
  if (!id) item.refuse("call_id", "is required");
  if (!name) item.refuse("name", "is required");
  conversation.add_call(
      template_call(id.value_or(""), name.value_or(""), parse_call_arguments(item, "arguments")));
}

void parse_result_item(JsonFields& item, Conversation& conversation) {
  const auto id = item.text("call_id");
  if (!id) item.refuse("call_id", "is required");
  if (item.any("output") == nullptr) item.refuse("output", "is required");
  conversation.add_result(id.value_or(""), parse_text_content(item, "output", kTextTypes));
}

void parse_item(JsonFields& item, Conversation& conversation) {
  const std::string type = item.text("type").value_or("message");
  if (type == "message") {
    parse_message_item(item, conversation);
  } else if (type == "function_call") {
    parse_call_item(item, conversation);
  } else if (type == "function_call_output") {
    parse_result_item(item, conversation);
  } else if (type != "reasoning") {  // thoughts of earlier turns are not told again
    item.refuse("type", fmt::format("\"{:.40}\" is not supported by this server", type));
  }
}

Json parse_input(JsonFields& fields) {
  Conversation conversation;
  if (const auto instructions = fields.text("instructions")) {
    conversation.add_system(*instructions);
  }
  const Json* input = fields.any("input");
  if (input == nullptr) {
    fields.refuse("input", "is required");
  } else if (input->is_string()) {
    conversation.add("user", input->get<std::string>());
  } else if (!input->is_array() || input->empty()) {
    fields.refuse("input", "must be a string or a list of items that is not empty");
  } else {
    for (size_t index = 0; index < input->size() && !fields.error(); ++index) {
      const std::string path = fmt::format("input[{}]", index);
      const Json& given = (*input)[index];
      if (!given.is_object()) {
        fields.refuse(path, fmt::format("must be an object, not {}", kind_name(given)));
        break;
      }
      JsonFields item(given, path + ".");
      parse_item(item, conversation);
      fields.adopt(item);
    }
  }
  return conversation.take();
}

void refuse_unsupported(JsonFields& fields) {
  for (const std::string_view name : kUnsupported) {
    const Json* value = fields.any(name);
    const bool one = name == "n" && value != nullptr && *value == 1;
    if (value != nullptr && value->is_number_integer() && *value == 0) continue;
    if (!one) fields.refuse_unsupported(name);
  }
  if (const auto truncation = fields.text("truncation"); truncation && *truncation != "disabled") {
    fields.refuse("truncation", "is not supported by this server but for \"disabled\"");
  }
  if (const Json* include = fields.array("include")) {
    const Json logprobs = "message.output_text.logprobs";
    if (std::ranges::find(*include, logprobs) != include->end()) {
      fields.refuse("include", "logprobs are not supported by this server; leave them out");
    }
  }
}

Json echoed_tools(const ToolUse& tools) {
  Json list = Json::array();
  for (const ToolFunction& function : tools.functions) {
    Json tool = {{"type", "function"}, {"name", function.name}};
    tool["description"] = function.description.empty() ? Json(nullptr) : Json(function.description);
    tool["parameters"] = function.parameters;
    tool["strict"] = false;
    list.push_back(std::move(tool));
  }
  return list;
}

Json echoed_choice(const ToolUse& tools) {
  if (!tools.named.empty()) return {{"type", "function"}, {"name", tools.named}};
  switch (tools.choice) {
    case ToolUse::Choice::kNone:
      return "none";
    case ToolUse::Choice::kAuto:
      return "auto";
    case ToolUse::Choice::kRequired:
      return "required";
  }
  return "auto";
}

Json value_or_null(JsonFields& fields, std::string_view name) {
  const Json* value = fields.any(name);
  return value == nullptr ? Json(nullptr) : *value;
}

Json number_or(JsonFields& fields, std::string_view name, double fallback) {
  const Json* value = fields.any(name);
  return value == nullptr ? Json(fallback) : *value;
}

Json echo(JsonFields& fields, const ToolUse& tools, const Json& format) {
  const Json* metadata = fields.object("metadata");
  return {{"instructions", value_or_null(fields, "instructions")},
          {"max_output_tokens", value_or_null(fields, "max_output_tokens")},
          {"metadata", metadata == nullptr ? Json::object() : *metadata},
          {"parallel_tool_calls", tools.parallel},
          {"previous_response_id", nullptr},
          {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
          {"store", false},
          {"temperature", number_or(fields, "temperature", 1)},
          {"text", {{"format", format}}},
          {"tool_choice", echoed_choice(tools)},
          {"tools", echoed_tools(tools)},
          {"top_p", number_or(fields, "top_p", 1)},
          {"truncation", "disabled"}};
}

// The format of "text": what the answer must be, into `wanted`; as the answer repeats it.
Json parse_format(JsonFields& fields, std::optional<StructuredOutput>& wanted) {
  Json plain = {{"type", "text"}};
  const Json* text = fields.object("text");
  if (text == nullptr) return plain;
  JsonFields inner(*text, "text.");
  const Json* format = inner.object("format");
  if (format == nullptr) {
    fields.adopt(inner);
    return plain;
  }
  JsonFields members(*format, "text.format.");
  const std::string type = members.text("type").value_or("");
  if (wanted && type != "text")
    members.refuse("type", "another field says what the answer must be");
  if (type == "json_object") {
    wanted.emplace(GrammarSource{GrammarSource::Kind::kJsonObject, ""}, "text.format");
  } else if (type == "json_schema") {
    const Json* schema = members.object("schema");
    if (schema == nullptr) members.refuse("schema", "is required");
    if (!members.text("name")) members.refuse("name", "is required");
    if (schema != nullptr) {
      wanted.emplace(GrammarSource{GrammarSource::Kind::kJsonSchema, to_text(*schema)},
                     "text.format.schema");
    }
  } else if (type != "text") {
    members.refuse("type", "must be \"text\", \"json_object\" or \"json_schema\"");
  }
  inner.adopt(members);
  fields.adopt(inner);
  return *format;
}

}  // namespace

ApiResult<ResponsesRequest> parse_responses(const Json& body, const RequestLimits& limits) {
  JsonFields fields(body);
  ResponsesRequest request;
  ChatRequest& chat = request.chat;
  refuse_unsupported(fields);
  chat.parameters = parse_generation(fields, limits);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (const auto most = fields.integer("max_output_tokens", 1, kMost)) {
    chat.parameters.max_tokens = static_cast<uint32_t>(*most);
  }
  chat.tools = parse_response_tools(fields);
  chat.variables = {{"messages", parse_input(fields)},
                    {"tools", nullptr},
                    {"documents", nullptr},
                    {"add_generation_prompt", true}};
  const Json format = parse_format(fields, chat.parameters.structured_output);
  refuse_unsupported_features(fields);
  request.echoed = echo(fields, chat.tools, format);
  if (fields.error()) return std::unexpected(*fields.error());
  return request;
}

}  // namespace lockstep
