#include "server/api/openai/responses_request.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "engine/base/format.h"

namespace lockstep {
namespace {

void append_number(double number, std::string& text) {
  constexpr size_t kDigitsMax = 32;  // -1.7976931348623157e+308 has 24
  char digits[kDigitsMax];
  const auto [end, error] = std::to_chars(digits, digits + kDigitsMax, number);
  text.append(digits, end);
}

constexpr std::string_view kItemRoles[] = {"user", "assistant", "system", "developer"};
constexpr std::string_view kItemTextTypes[] = {"input_text", "output_text", "text"};

// The fields that ask for stored state, or for what this server does not do.
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
  if (std::ranges::find(kItemRoles, role) == std::end(kItemRoles)) {
    item.refuse("role", fmt::format("must be one of {}, not \"{:.40}\"",
                                    fmt::join(kItemRoles, ", "), role));
  }
  if (item.any("content") == nullptr) item.refuse("content", "is required");
  std::string content = parse_text_content(item, "content", kItemTextTypes);
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
  conversation.add_result(id.value_or(""), parse_text_content(item, "output", kItemTextTypes));
}

void parse_item(JsonFields& item, Conversation& conversation) {
  const std::string type = item.text("type").value_or("message");
  if (type == "message") {
    parse_message_item(item, conversation);
  } else if (type == "function_call") {
    parse_call_item(item, conversation);
  } else if (type == "function_call_output") {
    parse_result_item(item, conversation);
  } else if (type != "reasoning") {  // reasoning of earlier turns is not told again
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

// Code points, as OpenAI counts characters.
size_t character_count(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }));
}

// Refuses what is more than OpenAI takes.
const Json* parse_metadata(JsonFields& fields) {
  constexpr size_t kPairsMax = 16;
  constexpr size_t kNameCharactersMax = 64;
  constexpr size_t kValueCharactersMax = 512;
  const Json* metadata = fields.object("metadata");
  if (metadata == nullptr) return nullptr;
  if (metadata->size() > kPairsMax) {
    fields.refuse("metadata",
                  fmt::format("must have at most {} pairs, not {}", kPairsMax, metadata->size()));
    return nullptr;
  }
  for (const auto& [name, value] : metadata->items()) {
    const std::string path = fmt::format("metadata.{:.64}", name);
    if (const size_t count = character_count(name); count > kNameCharactersMax) {
      fields.refuse("metadata", fmt::format("names must have at most {} characters, not {}",
                                            kNameCharactersMax, count));
    } else if (!value.is_string()) {
      fields.refuse(path, fmt::format("must be a string, not {}", kind_name(value)));
    } else if (const size_t length = character_count(value.get_ref<const std::string&>());
               length > kValueCharactersMax) {
      fields.refuse(path, fmt::format("must have at most {} characters, not {}",
                                      kValueCharactersMax, length));
    }
  }
  return metadata;
}

// The members of an object as text, without its braces.
class Members {
 public:
  void add(std::string_view name, const Json& value) {
    begin(name);
    append_compact_text(value, text_);
  }
  // Null for none.
  void add(std::string_view name, const Json* value) {
    add(name, value == nullptr ? Json(nullptr) : *value);
  }
  // `value`: a JSON text.
  void add_text(std::string_view name, std::string_view value) {
    begin(name);
    text_ += value;
  }
  std::string take() {
    text_.shrink_to_fit();  // it is kept
    return std::move(text_);
  }

 private:
  void begin(std::string_view name) {
    fmt::format_to(std::back_inserter(text_), "{}\"{}\":", text_.empty() ? "" : ",", name);
  }

  std::string text_;
};

std::string echoed_tools(const ToolUse& tools) {
  std::string list = "[";
  for (const ToolFunction& function : tools.functions) {
    Members tool;
    tool.add("type", "function");
    tool.add("name", function.name);
    tool.add("description",
             function.description.empty() ? Json(nullptr) : Json(function.description));
    tool.add("parameters", &function.parameters);
    tool.add("strict", false);
    list += fmt::format("{}{{{}}}", list.size() == 1 ? "" : ",", tool.take());
  }
  return list + "]";
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

// `format`: of "text"; null where none was given.
std::string echo(JsonFields& fields, const ToolUse& tools, const std::optional<std::string>& effort,
                 const Json* format) {
  const Json one = 1;
  const Json none = Json::object();
  const Json plain = {{"type", "text"}};
  const auto or_default = [](const Json* value, const Json& other) {
    return value == nullptr ? &other : value;
  };
  Members text;
  text.add("format", or_default(format, plain));
  Members members;
  members.add("instructions", fields.any("instructions"));
  members.add("max_output_tokens", fields.any("max_output_tokens"));
  members.add("metadata", or_default(parse_metadata(fields), none));
  members.add("parallel_tool_calls", tools.parallel);
  members.add("previous_response_id", nullptr);
  members.add("reasoning",
              {{"effort", effort ? Json(*effort) : Json(nullptr)}, {"summary", nullptr}});
  members.add("store", false);
  members.add("temperature", or_default(fields.any("temperature"), one));
  members.add_text("text", fmt::format("{{{}}}", text.take()));
  members.add("tool_choice", echoed_choice(tools));
  members.add_text("tools", echoed_tools(tools));
  members.add("top_p", or_default(fields.any("top_p"), one));
  members.add("truncation", "disabled");
  return members.take();
}

// The effort of "reasoning".
std::optional<std::string> parse_effort(JsonFields& fields) {
  const Json* reasoning = fields.object("reasoning");
  if (reasoning == nullptr) return std::nullopt;
  JsonFields members(*reasoning, "reasoning.");
  auto effort = members.text("effort");
  fields.adopt(members);
  return effort;
}

// The format of "text": what the answer must be, into `wanted`; null where there is none.
const Json* parse_format(JsonFields& fields, std::optional<StructuredOutput>& wanted) {
  const Json* text = fields.object("text");
  if (text == nullptr) return nullptr;
  JsonFields inner(*text, "text.");
  const Json* format = inner.object("format");
  if (format == nullptr) {
    fields.adopt(inner);
    return nullptr;
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
  return format;
}

}  // namespace

void append_compact_text(const Json& value, std::string& text) {
  if (value.is_object()) {
    text += '{';
    bool first = true;
    for (const auto& [name, member] : value.items()) {
      if (!std::exchange(first, false)) text += ',';
      text += to_text(Json(name));
      text += ':';
      append_compact_text(member, text);
    }
    text += '}';
  } else if (value.is_array()) {
    text += '[';
    for (const Json& element : value) {
      if (&element != &value.front()) text += ',';
      append_compact_text(element, text);
    }
    text += ']';
  } else if (value.is_number_float()) {
    append_number(value.get<double>(), text);
  } else {
    text += to_text(value);
  }
}

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
  const auto effort = parse_effort(fields);
  add_reasoning_effort(effort, nullptr, chat.variables);
  parse_reasoning_budget(fields, nullptr, chat);
  const Json* format = parse_format(fields, chat.parameters.structured_output);
  refuse_unsupported_features(fields);
  request.echoed = echo(fields, chat.tools, effort, format);
  if (fields.error()) return std::unexpected(*fields.error());
  return request;
}

}  // namespace lockstep
