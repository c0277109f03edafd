#include "server/api/common/chat_turns.h"

#include <utility>

#include "server/api/common/chat_request.h"
#include "server/api/common/random.h"
#include "server/api/common/tool_use.h"
#include "server/api/common/turn_syntax.h"

namespace lockstep {
namespace {

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

// Whether there is something that the answer must be, from its first token on.
bool is_held(const ChatRequest& chat) {
  const bool must_call = chat.tools.active() && chat.tools.choice == ToolUse::Choice::kRequired;
  return must_call || chat.parameters.structured_output;
}

}  // namespace

ApiResult<ChatPrompt> encode_chat_turn(const ServedModel& model, ChatRequest& chat,
                                       std::string_view parameter, bool must_fit) {
  const ChatFamily& family = model.chat_family();
  Json& messages = chat.variables["messages"];
  if (family.general_tools) {
    if (chat.tools.active() || speaks_of_calls(messages)) {
      write_general_tools(family, chat.tools, messages);
      model.note_general_tools();
    }
  } else if (family.calls != nullptr) {
    fit_call_ids(*family.calls, messages);
    chat.variables["tools"] = template_tools(chat.tools);
  }
  if (chat.continues_last) mark_content_end(messages.back());
  // Reasoning is free: an answer that is held to a form goes without it.
  return encode_chat(model, chat.variables, parameter,
                     {.continues_last = chat.continues_last,
                      .closes_reasoning = is_held(chat) && !chat.continues_last,
                      .must_fit = must_fit});
}

ApiResult<ChatTurns> make_chat_turns(const ServedModel& model, ChatRequest chat,
                                     std::string_view parameter) {
  const ChatFamily& family = model.chat_family();
  auto prompt = encode_chat_turn(model, chat, parameter, /*must_fit=*/true);
  if (!prompt) return std::unexpected(prompt.error());
  ChatTurns turns;
  turns.rules = {.calls = chat.tools.active() ? family.calls : nullptr,
                 .functions = chat.tools.names(),
                 .parallel = chat.tools.parallel,
                 .reasoning = family.reasoning && !chat.continues_last && !prompt->reasoning_closed,
                 .starts_in_reasoning = ends_in_reasoning(prompt->text)};
  if (turns.rules.calls != nullptr || turns.rules.reasoning) {
    chat.parameters.request.visible_tokens = family.visible_tokens;
  }
  auto wanted = chat.parameters.structured_output;
  if (turns.rules.calls != nullptr) {
    auto constrained = constrain_turn(*turns.rules.calls, chat.tools, wanted);
    if (!constrained) return std::unexpected(constrained.error());
    wanted = std::move(*constrained);
  }
  if (wanted) turns.constraint = wanted->parameter;
  auto grammar = compile_structured_output(model, wanted);
  if (!grammar) return std::unexpected(grammar.error());
  chat.parameters.request.grammar = std::move(*grammar);
  auto requests = make_requests(chat.parameters, {std::move(prompt->tokens)},
                                chat.default_max_tokens, model.limits(), parameter, random_seed());
  if (!requests) return std::unexpected(requests.error());
  turns.requests = std::move(*requests);
  return turns;
}

}  // namespace lockstep
