// A conversation to be gone on with, as all dialects parse it, its prompt, the engine's requests
// that come of it, and the rules by which their text is read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/text/tokenizer.h"
#include "server/api/common/generation_parameters.h"
#include "server/api/common/tool_use.h"
#include "server/api/common/turn_parser.h"

namespace lockstep {

struct ChatRequest {
  GenerationParameters parameters;
  Json variables;  // for the chat template: messages, add_generation_prompt and what was passed on
  ToolUse tools;
  bool continues_last = false;  // the answer goes on with the last message, an assistant's
  std::optional<uint32_t> reasoning_tokens;  // the most that it may reason; none: no limit
  std::string prediction;  // a text that the answer is expected to repeat; empty: none
  uint32_t default_max_tokens = UINT32_MAX;  // without parameters.max_tokens; what fits, if less
};

// The text of field `name`: a string, or the texts of its parts {"type": …, "text": …} in order,
// whose types are among `types`.
std::string parse_text_content(JsonFields& holder, std::string_view name,
                               std::span<const std::string_view> types);

// Gives a request's effort of reasoning to the chat template, as templates know it: by its name,
// and as thinking that is on, or with "none" off. What `given`, other variables or null, says goes
// before.
void add_reasoning_effort(const std::optional<std::string>& effort, const Json* given,
                          Json& variables);
// Whether it shall reason at all, as templates know it.
void add_thinking(bool is_on, const Json* given, Json& variables);

// "reasoning_budget_tokens", or "thinking_budget_tokens": -1 for no limit, 0 for thinking that is
// off. `given` as above.
void parse_reasoning_budget(JsonFields& fields, const Json* given, ChatRequest& chat);

// Whether the last message can be gone on with: an assistant's that says something and calls
// nothing.
bool can_continue(const Json& messages);

// How a prompt ends where the template alone does not say it.
struct PromptEnd {
  bool continues_last = false;    // where the last message's content does, at its mark
  bool closes_reasoning = false;  // behind reasoning that the template opened, and which is over
  std::string_view answer_head = {};  // behind this: the head of a message, or an answer's mark
  // The family whose calls were written as text (write_calls()); null: none were.
  const CallSyntax* written_calls = nullptr;
  std::string_view secret = {};
  bool must_fit = false;  // 400 for a prompt that can never fit the context
};

struct ChatPrompt {
  std::string text;  // the rendered template
  std::vector<TokenId> tokens;
  bool reasoning_closed = false;  // PromptEnd::closes_reasoning, and there was some
  bool in_answer = false;         // PromptEnd::answer_head was written
};

// The prompt of a chat: the rendered template, with its special tokens as tokens; what the request
// says makes none, as Engine::encode_chat() has it. Errors are about `parameter`.
ApiResult<ChatPrompt> encode_chat(const ServedModel& model, const Json& variables,
                                  std::string_view parameter = "messages", PromptEnd end = {});

// Prompts that end where the last message's content does, for answers that go on with it: whatever
// a template writes behind a message is cut off. The place is found by a mark behind the content,
// not by the content, which may stand elsewhere as well, also in what the template writes ("<").

// Before the template is rendered: the mark behind the content of a message, which is a string.
void mark_content_end(Json& message);

// Afterwards: the text up to the mark, without white space before it where the template trims what
// it is given. False if there is no mark: the template has not written the content's end. The work
// is linear in the text.
bool cut_at_mark(TracedText& prompt);

// The engine's requests of /v1/chat/completions, /v1/responses and /v1/messages.
struct ChatTurns {
  std::vector<Request> requests;  // one per choice
  uint32_t slot = 0;              // GenerationParameters::slot
  TurnRules rules;
  std::string constraint;  // the field that says what the turn must be; empty: none does
};

// The prompt of the conversation, with its tools; its variables are changed for that. Reasoning
// that the template opens is closed again where the answer is held to a form. Fails with 400 where
// the model's chat template cannot take the conversation or the tools. `parameter` names the
// conversation in errors.
// `must_fit`: 400 also for a prompt that can never fit the context.
ApiResult<ChatPrompt> encode_chat_turn(const ServedModel& model, ChatRequest& chat,
                                       std::string_view parameter, bool must_fit = false);

// Fails as encode_chat_turn() does, and where the context cannot hold it.
ApiResult<ChatTurns> make_chat_turns(const ServedModel& model, ChatRequest chat,
                                     std::string_view parameter);

}  // namespace lockstep
