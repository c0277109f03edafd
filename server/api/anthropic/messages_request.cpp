#include <limits>
#include <utility>

#include "server/api/anthropic/endpoints.h"

namespace lockstep {
namespace {

constexpr std::string_view kTextTypes[] = {"text"};

// The parts of one message of Anthropic's.
struct Blocks {
  std::string text;
  std::string thinking;
  Json calls = Json::array();
  Json results = Json::array();  // messages of the role "tool"
};

void parse_call(JsonFields& block, Blocks& blocks) {
  const auto id = block.text("id");
  const auto name = block.text("name");
  const Json* input = block.object("input");
  if (!id) block.refuse("id", "is required");
  if (!name) block.refuse("name", "is required");
  if (input == nullptr) block.refuse("input", "is required");
  blocks.calls.push_back(template_call(id.value_or(""), name.value_or(""),
                                       input == nullptr ? Json::object() : *input));
}

void parse_result(JsonFields& block, Blocks& blocks) {
  const auto id = block.text("tool_use_id");
  if (!id) block.refuse("tool_use_id", "is required");
  static_cast<void>(block.boolean("is_error"));
  blocks.results.push_back({{"role", "tool"},
                            {"content", parse_text_content(block, "content", kTextTypes)},
                            {"tool_call_id", id.value_or("")}});
}

void parse_block(JsonFields& block, std::string_view role, Blocks& blocks) {
  const std::string type = block.text("type").value_or("");
  if (type == "text") {
    const auto text = block.text("text");
    if (!text) block.refuse("text", "is required");
    blocks.text += text.value_or("");
  } else if (type == "tool_use" && role == "assistant") {
    parse_call(block, blocks);
  } else if (type == "tool_result" && role == "user") {
    parse_result(block, blocks);
  } else if (type == "thinking" && role == "assistant") {
    blocks.thinking += block.text("thinking").value_or("");
  } else if (type != "redacted_thinking" || role != "assistant") {
    block.refuse("type", fmt::format("\"{:.40}\" is not supported by this server in a message of "
                                     "the role \"{}\"",
                                     type, role));
  }
}

Blocks parse_blocks(JsonFields& message, std::string_view role) {
  Blocks blocks;
  const Json* content = message.any("content");
  if (content == nullptr) {
    message.refuse("content", "is required");
  } else if (content->is_string()) {
    blocks.text = content->get<std::string>();
  } else if (!content->is_array()) {
    message.refuse("content", fmt::format("must be a string or a list of blocks, not {}",
                                          kind_name(*content)));
  } else {
    for (size_t index = 0; index < content->size() && !message.error(); ++index) {
      const std::string name = fmt::format("content[{}]", index);
      const Json& given = (*content)[index];
      if (!given.is_object()) {
        message.refuse(name, fmt::format("must be an object, not {}", kind_name(given)));
        break;
      }
      JsonFields block(given, message.path() + name + ".");
      parse_block(block, role, blocks);
      message.adopt(block);
    }
  }
  return blocks;
}

// Adds what templates make of the message: results of calls are messages of their own, before what
// the user says.
void add_message(JsonFields& message, Json& messages) {
  const std::string role = message.text("role").value_or("");
  if (role != "user" && role != "assistant") {
    message.refuse("role", fmt::format("must be \"user\" or \"assistant\", not \"{:.40}\"", role));
    return;
  }
  Blocks blocks = parse_blocks(message, role);
  const bool only_results = !blocks.results.empty() && blocks.text.empty();
  for (Json& result : blocks.results) messages.push_back(std::move(result));
  if (only_results) return;
  Json plain = {{"role", role}, {"content", std::move(blocks.text)}};
  if (!blocks.thinking.empty()) plain["reasoning_content"] = std::move(blocks.thinking);
  if (!blocks.calls.empty()) plain["tool_calls"] = std::move(blocks.calls);
  messages.push_back(std::move(plain));
}

Json parse_conversation(JsonFields& fields) {
  Json messages = Json::array();
  if (fields.any("system") != nullptr) {
    std::string system = parse_text_content(fields, "system", kTextTypes);
    if (!system.empty()) {
      messages.push_back({{"role", "system"}, {"content", std::move(system)}});
    }
  }
  const Json* given = fields.array("messages");
  if (given == nullptr || given->empty()) fields.refuse("messages", "needs at least one message");
  for (size_t index = 0; given != nullptr && index < given->size() && !fields.error(); ++index) {
    const std::string path = fmt::format("messages[{}]", index);
    if (!(*given)[index].is_object()) {
      fields.refuse(path, fmt::format("must be an object, not {}", kind_name((*given)[index])));
      break;
    }
    JsonFields message((*given)[index], path + ".");
    add_message(message, messages);
    fields.adopt(message);
  }
  return messages;
}

void parse_tool_choice(JsonFields& fields, ToolUse& tools) {
  const Json* given = fields.object("tool_choice");
  if (given == nullptr) return;
  JsonFields choice(*given, "tool_choice.");
  const std::string type = choice.text("type").value_or("");
  tools.parallel = !choice.boolean("disable_parallel_tool_use").value_or(false);
  if (type == "none") {
    tools.choice = ToolUse::Choice::kNone;
  } else if (type == "any" || type == "tool") {
    tools.choice = ToolUse::Choice::kRequired;
    if (type == "tool") {
      tools.named = choice.text("name").value_or("");
      if (tools.named.empty()) choice.refuse("name", "is required");
    }
  } else if (type != "auto") {
    choice.refuse("type", "must be \"auto\", \"any\", \"tool\" or \"none\"");
  }
  fields.adopt(choice);
  check_tool_choice(fields, "tool_choice", tools);
}

ToolUse parse_tools(JsonFields& fields) {
  constexpr size_t kToolsMax = 128;
  ToolUse tools;
  const Json* list = fields.array("tools");
  if (list != nullptr && list->size() > kToolsMax) {
    fields.refuse("tools", fmt::format("must have at most {}, not {}", kToolsMax, list->size()));
  }
  for (size_t index = 0; list != nullptr && index < list->size() && !fields.error(); ++index) {
    const std::string path = fmt::format("tools[{}]", index);
    if (!(*list)[index].is_object()) {
      fields.refuse(path, fmt::format("must be an object, not {}", kind_name((*list)[index])));
      break;
    }
    JsonFields tool((*list)[index], path + ".");
    if (const auto type = tool.text("type"); type && *type != "custom") {
      tool.refuse("type", fmt::format("\"{:.40}\" is not supported by this server", *type));
    }
    const Json* schema = tool.object("input_schema");
    if (schema == nullptr) tool.refuse("input_schema", "is required");
    add_function(tools, tool, schema);
    fields.adopt(tool);
  }
  parse_tool_choice(fields, tools);
  return tools;
}

void parse_length(JsonFields& fields, bool counts_only, ChatRequest& chat) {
  const auto most = fields.integer("max_tokens", 1, std::numeric_limits<int32_t>::max());
  if (!most && !counts_only) fields.refuse("max_tokens", "is required");
  if (most) chat.default_max_tokens = static_cast<uint32_t>(*most);
}

// "thinking": {"type": "enabled", "budget_tokens": N}, {"type": "adaptive"} or {"type":
// "disabled"}.
void parse_thinking(JsonFields& fields, ChatRequest& chat) {
  const Json* given = fields.object("thinking");
  if (given == nullptr) return;
  JsonFields thinking(*given, "thinking.");
  const std::string type = thinking.text("type").value_or("");
  const auto most = thinking.integer("budget_tokens", 1, std::numeric_limits<int32_t>::max());
  if (type == "disabled") {
    add_thinking(false, nullptr, chat.variables);
  } else if (type == "enabled" || type == "adaptive") {
    add_thinking(true, nullptr, chat.variables);
    if (most) chat.reasoning_tokens = static_cast<uint32_t>(*most);
  } else {
    thinking.refuse("type", "must be \"enabled\", \"adaptive\" or \"disabled\"");
  }
  fields.adopt(thinking);
}

}  // namespace

ApiResult<ChatRequest> parse_messages(const Json& body, const RequestLimits& limits,
                                      bool counts_only) {
  JsonFields fields(body);
  ChatRequest chat;
  const Json* choices = fields.any("n");
  if (choices != nullptr && *choices != 1) fields.refuse_unsupported("n");
  chat.parameters = parse_generation(fields, limits);
  chat.parameters.request.stop = parse_stop(fields, "stop_sequences");
  parse_length(fields, counts_only, chat);
  Json messages = parse_conversation(fields);
  chat.tools = parse_tools(fields);
  for (const std::string_view name : {"stop", "container", "mcp_servers"}) {
    fields.refuse_unsupported(name);
  }
  refuse_unsupported_features(fields);
  // An answer goes on with a last message of the assistant's.
  chat.continues_last = can_continue(messages);
  chat.variables = {{"messages", std::move(messages)},
                    {"tools", nullptr},
                    {"documents", nullptr},
                    {"add_generation_prompt", !chat.continues_last}};
  parse_thinking(fields, chat);
  if (fields.error()) return std::unexpected(*fields.error());
  return chat;
}

}  // namespace lockstep
