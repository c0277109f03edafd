// How a family of models writes reasoning and calls of tools into its text.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

// The marks around a model's reasoning, with which a turn begins where its family reasons.
// Templates of models that always think write the first one into the prompt.
inline constexpr std::string_view kReasoningOpen = "<think>";
inline constexpr std::string_view kReasoningClose = "</think>";

// Whether the answer to this prompt begins within reasoning.
bool ends_in_reasoning(std::string_view prompt);

// Ends such a prompt with reasoning that is over and empty, as templates write them for a model
// that shall not think. False where it is none; nothing happens then.
bool close_reasoning(TracedText& prompt);

// A turn holds text and groups of calls: `open`, then objects {"name": …, "arguments": …} with
// `separator` between them, then `close`.
struct CallSyntax {
  std::string_view name;
  // The text that a template of the family writes for a turn that calls the function
  // kProbeFunction.
  std::string_view sign;
  std::string_view open;
  std::string_view list_open;  // may follow `open`
  std::string_view separator;  // empty: each call is a group of its own
  std::string_view close;      // may be empty
  std::string_view arguments;  // the name of the arguments in the object
  bool bare;                   // a turn that starts with an object is a call without `open`
  bool parallel;               // the template takes turns with several calls
  size_t id_length;            // of the ids that the template takes; 0: any
};

// All families.
std::span<const CallSyntax> call_syntaxes();

// Tells families apart: see CallSyntax::sign.
constexpr std::string_view kProbeFunction = "lockstep_probe";

// The abilities of the model's chat template beyond text.
struct ChatFamily {
  const CallSyntax* calls = nullptr;  // null: there is no chat template
  // The template knows no tools: they and their calls are put into the messages.
  bool general_tools = false;
  bool system_messages = false;  // it takes a message of the role "system", and says it
  bool reasoning = false;        // turns start with <think>…</think>
  // The control tokens that mark calls and reasoning: the reader of a turn wants their text.
  std::vector<TokenId> visible_tokens;
};

// By what the template makes of turns with a call and with reasoning.
ChatFamily find_chat_family(const Engine& engine);

// The id of a call, as the family's template takes it: the same for the same id.
std::string fitting_call_id(const CallSyntax& syntax, const std::string& id);

}  // namespace lockstep
