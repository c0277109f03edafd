#include "server/api/openai/completion_request.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace lockstep {
namespace {

constexpr int64_t kLogprobsMax = 5;  // OpenAI's, for this endpoint
constexpr int64_t kBestOfMax = 20;

void refuse_prompt(JsonFields& fields) {
  fields.refuse("prompt",
                "must be a string, a list of strings, a list of token ids or a list of lists of "
                "token ids; no list may be empty");
}

// The ids of one prompt; empty after an error.
std::vector<TokenId> parse_ids(JsonFields& fields, const Json& list, const RequestLimits& limits) {
  std::vector<TokenId> tokens;
  if (list.empty()) refuse_prompt(fields);
  for (const Json& value : list) {
    if (!value.is_number_integer()) {
      refuse_prompt(fields);
      return {};
    }
    const auto token = token_id(value, limits.vocabulary_size);
    if (!token) {
      fields.refuse("prompt", fmt::format("token ids must be from 0 to {}, not {}",
                                          limits.vocabulary_size - 1, to_text(value)));
      return {};
    }
    tokens.push_back(*token);
  }
  return tokens;
}

// How many prompts there are, without looking at any.
size_t prompt_count(const JsonFields& fields) {
  const Json* value = fields.any("prompt");
  const bool many =
      value != nullptr && value->is_array() && !value->empty() && !value->front().is_number();
  return many ? value->size() : 1;
}

std::vector<Prompt> parse_prompts(JsonFields& fields, const RequestLimits& limits) {
  const Json* value = fields.any("prompt");
  // Made without a list of initializers: where memory is refused, GCC 12 destroys one wrongly.
  std::vector<Prompt> prompts;
  // Unset is the beginning of a new document, as the empty string is.
  if (value == nullptr || value->is_string()) {
    prompts.emplace_back(value == nullptr ? std::string() : value->get<std::string>());
    return prompts;
  }
  if (!value->is_array() || value->empty()) {
    refuse_prompt(fields);
    return prompts;
  }
  if (value->front().is_number()) {
    prompts.emplace_back(parse_ids(fields, *value, limits));
    return prompts;
  }
  const bool strings = value->front().is_string();
  for (const Json& element : *value) {
    if (strings && element.is_string()) {
      prompts.emplace_back(element.get<std::string>());
    } else if (!strings && element.is_array()) {
      prompts.emplace_back(parse_ids(fields, element, limits));
    } else {
      refuse_prompt(fields);
      return {};
    }
  }
  return prompts;
}

constexpr int64_t kTopLogprobsMax = 20;  // OpenAI's, for this endpoint
constexpr std::string_view kRoles[] = {"developer", "system",   "user",
                                       "assistant", "function", "tool"};
constexpr std::string_view kTextTypes[] = {"text"};
// The variables that the server itself gives the template.
constexpr std::string_view kReservedVariables[] = {
    "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"};

// Earlier calls as templates want them, with arguments that are objects.
Json parse_tool_calls(JsonFields& message, const Json& list) {
  Json calls = Json::array();
  for (size_t index = 0; index < list.size() && !message.error(); ++index) {
    const std::string name = fmt::format("tool_calls[{}]", index);
    if (!list[index].is_object()) {
      message.refuse(name, fmt::format("must be an object, not {}", kind_name(list[index])));
      break;
    }
    JsonFields call(list[index], message.path() + name + ".");
    const Json* given = call.object("function");
    if (given == nullptr) {
      call.refuse("function", "is required");
      message.adopt(call);
      break;
    }
    JsonFields function(*given, call.path() + "function.");
    const auto called = function.text("name");
    if (!called) function.refuse("name", "is required");
    calls.push_back(template_call(call.text("id").value_or(""), called.value_or(""),
                                  parse_call_arguments(function, "arguments")));
    call.adopt(function);
    message.adopt(call);
  }
  return calls;
}

Json parse_message(JsonFields& fields, const Json& given, size_t index) {
  const std::string path = fmt::format("messages[{}]", index);
  if (!given.is_object()) {
    fields.refuse(path, fmt::format("must be an object, not {}", kind_name(given)));
    return nullptr;
  }
  JsonFields message(given, path + ".");
  Json parsed = Json::object();
  const std::string role = message.text("role").value_or("");
  if (std::ranges::find(kRoles, role) == std::end(kRoles)) {
    message.refuse("role",
                   fmt::format("must be one of {}, not \"{:.40}\"", fmt::join(kRoles, ", "), role));
  }
  parsed["role"] = role == "developer" ? "system" : role;
  const Json* content = message.any("content");
  const Json* calls = message.array("tool_calls");
  if (content != nullptr) {
    parsed["content"] = parse_text_content(message, "content", kTextTypes);
  } else if (role == "assistant" && calls != nullptr) {
    parsed["content"] = "";  // templates add to it
  } else {
    message.refuse("content", "is required");
  }
  for (const std::string_view name : {"name", "tool_call_id", "reasoning_content"}) {
    if (const auto text = message.text(name)) parsed[std::string(name)] = *text;
  }
  if (calls != nullptr && !calls->empty()) parsed["tool_calls"] = parse_tool_calls(message, *calls);
  fields.adopt(message);
  return parsed;
}

std::optional<uint32_t> parse_max_tokens(JsonFields& fields) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto old_name = fields.integer("max_tokens", 1, kMost);
  const auto name = fields.integer("max_completion_tokens", 1, kMost);
  if (!old_name && !name) return std::nullopt;
  return static_cast<uint32_t>(name ? *name : *old_name);
}

bool parse_continuation(JsonFields& fields, Json& variables) {
  if (!fields.boolean("continue_final_message").value_or(false)) return false;
  if (fields.boolean("add_generation_prompt").value_or(false)) {
    fields.refuse("continue_final_message", "cannot go with add_generation_prompt");
  }
  if (!can_continue(variables["messages"])) {
    fields.refuse("continue_final_message",
                  "needs a last message of the assistant that says something and calls nothing");
  }
  variables["add_generation_prompt"] = false;
  return true;
}

}  // namespace

size_t bytes_of(std::span<const Prompt> prompts) {
  size_t bytes = 0;
  for (const Prompt& prompt : prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    bytes += text != nullptr ? text->size()
                             : std::get<std::vector<TokenId>>(prompt).size() * sizeof(TokenId);
  }
  return bytes;
}

ApiResult<CompletionRequest> parse_completion(const Json& body, const RequestLimits& limits) {
  JsonFields fields(body);
  CompletionRequest completion;
  GenerationParameters& parameters = completion.parameters;
  parameters = parse_generation(fields, limits);
  if (const auto most = fields.integer("max_tokens", 0, std::numeric_limits<int32_t>::max())) {
    parameters.max_tokens = static_cast<uint32_t>(*most);
  }
  if (fields.error()) return std::unexpected(*fields.error());
  if (auto excess = check_choices(prompt_count(fields), parameters.choices, limits, "prompt")) {
    return std::unexpected(std::move(*excess));
  }
  completion.prompts = parse_prompts(fields, limits);
  completion.echo = fields.boolean("echo").value_or(false);
  completion.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  if (const auto logprobs = fields.integer("logprobs", 0, kLogprobsMax)) {
    parameters.request.logprobs = static_cast<uint32_t>(*logprobs);
    if (completion.echo) parameters.request.prompt_logprobs = parameters.request.logprobs;
  }
  const auto best_of = fields.integer("best_of", 0, kBestOfMax);
  if (best_of && *best_of > parameters.choices) {
    fields.refuse("best_of", "is not supported by this server beyond n");
  }
  fields.refuse_unsupported("tools");
  if (fields.text("suffix")) fields.refuse_unsupported("suffix");
  refuse_unsupported_features(fields);
  if (fields.error()) return std::unexpected(*fields.error());
  return completion;
}

ApiResult<std::vector<std::vector<TokenId>>> encode_prompts(const CompletionRequest& request,
                                                            const Tokenizer& tokenizer,
                                                            const RequestLimits& limits) {
  const EncodeOptions options{.add_special = request.add_special_tokens, .parse_special = true};
  std::vector<std::vector<TokenId>> encoded;
  for (const Prompt& prompt : request.prompts) {
    std::vector<TokenId>& tokens = encoded.emplace_back();
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
      tokens = *ids;
    } else {
      auto fitting =
          encode_fitting(tokenizer, std::get<std::string>(prompt), options, limits, "prompt");
      if (!fitting) return std::unexpected(std::move(fitting.error()));
      tokens = std::move(*fitting);
    }
    if (tokens.empty() && tokenizer.bos()) tokens.push_back(*tokenizer.bos());
    if (tokens.empty()) {
      return std::unexpected(bad_parameter(
          "prompt",
          "'prompt': must not be empty: this model has no beginning token to start from"));
    }
  }
  return encoded;
}

Json parse_template_variables(JsonFields& fields) {
  Json variables = Json::object();
  Json messages = Json::array();
  const Json* given = fields.array("messages");
  if (given == nullptr || given->empty()) fields.refuse("messages", "needs at least one message");
  if (given != nullptr) {
    for (size_t index = 0; index < given->size() && !fields.error(); ++index) {
      messages.push_back(parse_message(fields, (*given)[index], index));
    }
  }
  variables["messages"] = std::move(messages);
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = fields.boolean("add_generation_prompt").value_or(true);
  const Json* extra = fields.object("chat_template_kwargs");
  add_reasoning_effort(fields.text("reasoning_effort"), extra, variables);
  if (extra != nullptr) {
    for (const auto& [name, value] : extra->items()) {
      if (std::ranges::find(kReservedVariables, name) != std::end(kReservedVariables)) {
        fields.refuse("chat_template_kwargs",
                      fmt::format("must not set \"{}\", which the server sets", name));
      }
    }
    // Appended, not assigned: the names are distinct, and looking each up would be quadratic.
    auto& members = static_cast<Json::object_t::Container&>(variables.get_ref<Json::object_t&>());
    for (const auto& [name, value] : extra->items()) members.emplace_back(name, value);
  }
  return variables;
}

// OpenAI's predicted output: {"type": "content", "content": text or parts of text}.
std::string parse_prediction(JsonFields& fields) {
  const Json* value = fields.object("prediction");
  if (value == nullptr) return "";
  JsonFields prediction(*value, "prediction.");
  if (prediction.text("type") != "content") {
    prediction.refuse("type", "must be \"content\"");
  } else if (prediction.any("content") == nullptr) {
    prediction.refuse("content", "is missing");
  }
  std::string text = parse_text_content(prediction, "content", kTextTypes);
  fields.adopt(prediction);
  return text;
}

ApiResult<ChatRequest> parse_chat(const Json& body, const RequestLimits& limits) {
  JsonFields fields(body);
  ChatRequest chat;
  chat.parameters = parse_generation(fields, limits);
  chat.parameters.max_tokens = parse_max_tokens(fields);
  chat.variables = parse_template_variables(fields);
  parse_reasoning_budget(fields, fields.object("chat_template_kwargs"), chat);
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kTopLogprobsMax);
  if (top && !logprobs) fields.refuse("top_logprobs", "is only allowed when logprobs is true");
  if (logprobs) chat.parameters.request.logprobs = static_cast<uint32_t>(top.value_or(0));
  chat.tools = parse_chat_tools(fields);
  chat.prediction = parse_prediction(fields);
  chat.continues_last = parse_continuation(fields, chat.variables);
  refuse_unsupported_features(fields);
  if (fields.error()) return std::unexpected(*fields.error());
  return chat;
}

}  // namespace lockstep
