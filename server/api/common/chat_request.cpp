#include "server/api/common/chat_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "server/api/common/random.h"
#include "server/api/common/text_marks.h"
#include "server/api/common/tool_use.h"
#include "server/api/common/turn_syntax.h"

namespace lockstep {
namespace {

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \n\t\r") == std::string_view::npos;
}

constexpr std::string_view kMark = "lockstep:the-answer-goes-on-here";
// Ends the mark. A template that trims drops it; none writes such a space by itself.
constexpr char kTrimmed = '\f';
constexpr std::string_view kSpace = " \n\t\r\f\v";

// Whether a conversation holds earlier calls or their results.
bool speaks_of_calls(const Json& messages) {
  for (const Json& message : messages) {
    if (message.contains("tool_calls") || message["role"] == "tool") return true;
  }
  return false;
}

void fit_call_ids(const CallSyntax& syntax, Json& messages) {
  const auto fit = [&](Json& holder, const char* name) {
    const auto id = holder.find(name);
    if (id != holder.end() && id->is_string()) {
      *id = fitting_call_id(syntax, id->get_ref<const std::string&>());
    }
  };
  for (Json& message : messages) {
    fit(message, "tool_call_id");
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) fit(call, "id");
  }
}

// Earlier reasoning and arguments, as the family's template takes them.
void fit_turns(const ChatFamily& family, Json& messages) {
  for (Json& message : messages) {
    const std::string member(family.reasoning_member);
    if (message.contains("reasoning_content") && !message.contains(member)) {
      Json reasoning = message["reasoning_content"];
      message[member] = std::move(reasoning);
    }
    if (!message.contains("tool_calls")) continue;
    // Such templates take one of both beside a call, and write either as reasoning.
    std::string& said = message["content"].get_ref<std::string&>();
    if (family.messages != nullptr && message.contains(member) && !said.empty()) {
      message[member].get_ref<std::string&>() += "\n\n" + std::exchange(said, {});
    }
    if (!family.text_arguments) continue;
    for (Json& call : message["tool_calls"]) {
      Json& arguments = call["function"]["arguments"];
      arguments = to_text(arguments);
    }
  }
}

// The kinds of the functions' parameters, where the family's syntax needs them.
std::shared_ptr<const FunctionKinds> find_function_kinds(const CallSyntax* calls,
                                                         const ToolUse& tools) {
  if (calls == nullptr || calls->form != CallForm::kPairs) return nullptr;
  FunctionKinds kinds;
  for (const ToolFunction& function : tools.functions) {
    kinds.emplace(function.name, find_parameter_kinds(function.parameters, calls->pairs));
  }
  return std::make_shared<const FunctionKinds>(std::move(kinds));
}

// Whether the model is asked not to reason.
bool is_thinking_off(const ChatRequest& chat) {
  const auto enabled = chat.variables.find("enable_thinking");
  return enabled != chat.variables.end() && *enabled == false;
}

// Says in the template's own word that the model is asked not to reason, where it knows no "none".
void fit_effort(const ChatFamily& family, ChatRequest& chat) {
  if (family.least_effort == "none" || !is_thinking_off(chat)) return;
  const auto effort = chat.variables.find("reasoning_effort");
  if (effort == chat.variables.end() || *effort == "none") {
    chat.variables["reasoning_effort"] = family.least_effort;
  }
}

// The limit of the turn's reasoning, where it has one.
std::optional<ReasoningLimit> find_reasoning_limit(const Tokenizer& tokenizer,
                                                   const ChatRequest& chat,
                                                   const TurnRules& rules) {
  if (!chat.reasoning_tokens || rules.starts_in_answer) return std::nullopt;
  ReasoningLimit limit;
  limit.tokens = *chat.reasoning_tokens;
  const auto encode = [&](std::string_view text) {
    return tokenizer.encode(text, {.add_special = false, .parse_special = true});
  };
  std::string end;
  if (rules.messages != nullptr) {
    const MessageSyntax& messages = *rules.messages;
    limit.open = without_space(messages.reasoning_head);
    limit.close = messages.ends.front();
    limit.again = fmt::format("{}{}", messages.next, messages.reasoning_head);
    const std::string answers =
        fmt::format("{}{}{}", limit.close, messages.next, messages.answer_head);
    limit.end_again = encode(answers);
    // With tools that may be called, the next message is the model's choice, once.
    end = chat.tools.active() ? limit.close : answers;
  } else if (rules.reasoning) {
    limit.open = rules.marks->open;
    limit.is_open = rules.starts_in_reasoning;
    limit.close = rules.marks->close;
    end = limit.close;
  } else {
    return std::nullopt;
  }
  limit.end = encode(end);
  return limit;
}

// Whether there is something that the answer must be, from its first token on.
bool is_held(const ChatRequest& chat) {
  const bool must_call = chat.tools.active() && chat.tools.choice == ToolUse::Choice::kRequired;
  return must_call || chat.parameters.structured_output;
}

// The prediction's tokens, which all choices share. It takes as much space as a prompt at most.
ApiResult<void> encode_prediction(const ServedModel& model, ChatRequest& chat) {
  if (chat.prediction.empty()) return {};
  auto tokens = encode_fitting(model.engine().tokenizer(), chat.prediction, {.add_special = false},
                               model.limits(), "prediction");
  if (!tokens) return std::unexpected(std::move(tokens.error()));
  if (tokens->size() > model.limits().context_tokens) {
    return std::unexpected(context_exceeded_at_least(model.limits(), tokens->size(), "prediction"));
  }
  chat.parameters.request.prediction =
      std::make_shared<const std::vector<TokenId>>(std::move(*tokens));
  chat.prediction.clear();
  return {};
}

}  // namespace

std::string parse_text_content(JsonFields& holder, std::string_view name,
                               std::span<const std::string_view> types) {
  const Json* content = holder.any(name);
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    holder.refuse(name,
                  fmt::format("must be a string or a list of parts, not {}", kind_name(*content)));
    return "";
  }
  std::string text;
  for (const Json& part : *content) {
    const auto type = part.is_object() ? part.find("type") : part.end();
    const auto part_text = part.is_object() ? part.find("text") : part.end();
    const bool known = part.is_object() && type != part.end() && type->is_string() &&
                       std::ranges::find(types, type->get_ref<const std::string&>()) != types.end();
    if (!known || part_text == part.end() || !part_text->is_string()) {
      holder.refuse(name, fmt::format("parts must be {{\"type\": \"{}\", \"text\": …}}; this "
                                      "server takes no others",
                                      fmt::join(types, "\" or \"")));
      return "";
    }
    text += part_text->get_ref<const std::string&>();
  }
  return text;
}

void add_reasoning_effort(const std::optional<std::string>& effort, const Json* given,
                          Json& variables) {
  if (!effort) return;
  const auto add = [&](const char* name, Json value) {
    if (given == nullptr || !given->contains(name)) variables[name] = std::move(value);
  };
  add("reasoning_effort", *effort);
  add("reasoning_strength", *effort);
  add_thinking(*effort != "none", given, variables);
}

void add_thinking(bool is_on, const Json* given, Json& variables) {
  for (const char* const name : {"enable_thinking", "thinking"}) {
    if (given == nullptr || !given->contains(name)) variables[name] = is_on;
  }
  if (given == nullptr || !given->contains("thinking_mode")) {
    variables["thinking_mode"] = is_on ? "enabled" : "disabled";
  }
}

void parse_reasoning_budget(JsonFields& fields, const Json* given, ChatRequest& chat) {
  for (const char* const name : {"reasoning_budget_tokens", "thinking_budget_tokens"}) {
    const auto most = fields.integer(name, -1, std::numeric_limits<int32_t>::max());
    if (!most || *most < 0) continue;
    chat.reasoning_tokens = static_cast<uint32_t>(*most);
    if (*most == 0) add_thinking(false, given, chat.variables);
  }
}

bool can_continue(const Json& messages) {
  if (messages.empty()) return false;
  const Json& last = messages.back();
  return last["role"] == "assistant" && !last.contains("tool_calls") &&
         last["content"].is_string() && !is_blank(last["content"].get_ref<const std::string&>());
}

ApiResult<ChatPrompt> encode_chat(const ServedModel& model, const Json& variables,
                                  std::string_view parameter, PromptEnd end) {
  const Engine& engine = model.engine();
  auto text = engine.render_chat(variables);
  if (!text && !engine.has_chat_template()) {
    const std::string& refusal = engine.model().generation_refusal;
    return std::unexpected(bad_parameter(
        parameter,
        refusal.empty()
            ? fmt::format("Chats cannot be answered: {}; use /v1/completions instead",
                          text.error().message)
            : fmt::format("Chats cannot be answered: this model generates nothing: {}", refusal)));
  }
  if (!text) {
    ApiError error = model.to_api_error(text.error());
    error.message = "The model's chat template refused the messages: " + error.message;
    if (error.status == 400) error.parameter = parameter;
    return std::unexpected(std::move(error));
  }
  if (end.written_calls != nullptr) put_call_marks(*end.written_calls, end.secret, *text);
  if (end.continues_last && !cut_at_mark(*text)) {
    return std::unexpected(bad_parameter(
        parameter,
        "The model's chat template changes the last message: it cannot be gone on with"));
  }
  const bool closed = end.closes_reasoning && close_reasoning(*text);
  if (!end.answer_head.empty() && !text->text.ends_with(end.answer_head)) {
    text->append(end.answer_head, false);
  }
  const EncodeOptions options = engine.chat_encoding(*text);
  auto fitting = end.must_fit ? encode_fitting(engine.tokenizer(), text->text, options,
                                               model.limits(), parameter)
                              : engine.tokenizer().encode(text->text, options);
  if (!fitting) return std::unexpected(std::move(fitting.error()));
  std::vector<TokenId> tokens = std::move(*fitting);
  if (tokens.empty() && engine.tokenizer().bos()) tokens.push_back(*engine.tokenizer().bos());
  if (tokens.empty()) {
    return std::unexpected(
        bad_parameter(parameter, "The model's chat template makes no tokens of these messages"));
  }
  return ChatPrompt{std::move(text->text), std::move(tokens), closed, !end.answer_head.empty()};
}

void mark_content_end(Json& message) {
  std::string& content = message["content"].get_ref<std::string&>();
  content += kMark;
  content += kTrimmed;
}

bool cut_at_mark(TracedText& prompt) {
  const std::string& text = prompt.text;
  const size_t mark = text.rfind(kMark);
  if (mark == std::string::npos) return false;
  const size_t behind = mark + kMark.size();
  const bool trims = behind == text.size() || text[behind] != kTrimmed;
  prompt.truncate(mark);
  if (trims) prompt.truncate(text.find_last_not_of(kSpace) + 1);
  return true;
}

ApiResult<ChatPrompt> encode_chat_turn(const ServedModel& model, ChatRequest& chat,
                                       std::string_view parameter, bool must_fit) {
  const ChatFamily& family = model.chat_family();
  // First: more variables move those that are there.
  fit_effort(family, chat);
  if (!family.general_tools && family.calls != nullptr) {
    put_tools(family.tools_variable, template_tools(chat.tools, family.describes_all),
              chat.variables);
  }
  Json& messages = chat.variables["messages"];
  const bool writes_calls = family.calls != nullptr && !family.writes_calls;
  const std::string secret =
      writes_calls ? fmt::format("lockstep:calls:{:016x}{:016x}", random_seed(), random_seed())
                   : "";
  if (family.general_tools) {
    if (chat.tools.active() || speaks_of_calls(messages)) {
      write_general_tools(family, chat.tools, messages);
      model.note_general_tools();
    }
  } else if (family.calls != nullptr) {
    fit_call_ids(*family.calls, messages);
    if (!family.writes_calls) write_calls(*family.calls, secret, messages);
  }
  fit_turns(family, messages);
  if (chat.continues_last) mark_content_end(messages.back());
  // Reasoning is free: an answer that is held to a form goes without it.
  const bool held = (is_held(chat) || is_thinking_off(chat)) && !chat.continues_last;
  // The form itself says where the answer begins if there may be a call instead.
  std::string_view answer_head;
  if (held && !chat.tools.active() && family.messages != nullptr) {
    answer_head = family.messages->answer_head;
  } else if (is_held(chat) && !chat.continues_last && !chat.tools.active() &&
             family.answer != nullptr) {
    answer_head = family.answer->open;
  }
  return encode_chat(model, chat.variables, parameter,
                     {.continues_last = chat.continues_last,
                      .closes_reasoning = held,
                      .answer_head = answer_head,
                      .written_calls = writes_calls ? family.calls : nullptr,
                      .secret = secret,
                      .must_fit = must_fit});
}

ApiResult<ChatTurns> make_chat_turns(const ServedModel& model, ChatRequest chat,
                                     std::string_view parameter) {
  const ChatFamily& family = model.chat_family();
  auto prompt = encode_chat_turn(model, chat, parameter, /*must_fit=*/true);
  if (!prompt) return std::unexpected(prompt.error());
  ChatTurns turns;
  const ReasoningMarks* const opened = find_open_reasoning(prompt->text);
  turns.rules = {
      .calls = chat.tools.active() ? family.calls : nullptr,
      .functions = chat.tools.names(),
      .parallel = chat.tools.parallel,
      .starts_in_reasoning = opened != nullptr,
      .answer = family.answer,
      .messages = family.messages,
      .starts_in_answer = chat.continues_last || prompt->in_answer,
      .parameters = find_function_kinds(chat.tools.active() ? family.calls : nullptr, chat.tools)};
  if (const ReasoningMarks* marks = opened != nullptr ? opened : family.reasoning) {
    turns.rules.reasoning = !chat.continues_last && !prompt->reasoning_closed;
    turns.rules.marks = marks;
  }
  if (turns.rules.calls != nullptr || turns.rules.reasoning || turns.rules.answer != nullptr ||
      turns.rules.messages != nullptr) {
    chat.parameters.request.visible_tokens = family.visible_tokens;
  }
  chat.parameters.request.reasoning =
      find_reasoning_limit(model.engine().tokenizer(), chat, turns.rules);
  auto wanted = chat.parameters.structured_output;
  if (turns.rules.calls != nullptr) {
    auto constrained = constrain_turn(family, chat.tools, wanted);
    if (!constrained) return std::unexpected(constrained.error());
    wanted = std::move(*constrained);
  }
  if (wanted) turns.constraint = wanted->parameter;
  auto grammar = compile_structured_output(model, wanted);
  if (!grammar) return std::unexpected(grammar.error());
  chat.parameters.request.grammar = std::move(*grammar);
  if (auto predicted = encode_prediction(model, chat); !predicted) {
    return std::unexpected(predicted.error());
  }
  auto requests = make_requests(chat.parameters, {std::move(prompt->tokens)},
                                chat.default_max_tokens, model.limits(), parameter, random_seed());
  if (!requests) return std::unexpected(requests.error());
  turns.requests = std::move(*requests);
  turns.slot = chat.parameters.slot;
  return turns;
}

}  // namespace lockstep
