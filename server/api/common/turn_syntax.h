// How a family of models writes reasoning and calls of tools into its text.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

// The marks around a model's reasoning, with which a turn begins where its family reasons.
// Templates of models that always think write the first one into the prompt.
struct ReasoningMarks {
  std::string_view open;
  std::string_view close;
};

// All of them; the first one is <think>, </think>.
std::span<const ReasoningMarks> reasoning_marks();

// The marks with which the answer to this prompt begins within reasoning; null where it does not.
const ReasoningMarks* find_open_reasoning(std::string_view prompt);

// Ends such a prompt with reasoning that is over and empty, as templates write them for a model
// that shall not think. False where it is none; nothing happens then.
bool close_reasoning(TracedText& prompt);

// Arguments as pairs of a key and a value, each between marks. The schema of the function tells
// whether a value is JSON or a text that is written as it is (see parameter_types.h).
struct PairSyntax {
  std::string_view open = {};          // before a key
  std::string_view key_end = {};       // behind it
  std::string_view json_key_end = {};  // instead, before JSON; empty: key_end, the schema tells
  std::string_view value_open = {};    // may be empty
  std::string_view value_end = {};
  std::string_view padding = {};  // within both: one at either end of a value is no part of it
};

// A turn made of messages, each with a head that says what it is for: reasoning, the answer, or a
// call of the function that it is sent to.
struct MessageSyntax {
  std::string_view start;      // begins the head of a message that is not the turn's first
  std::string_view channel;    // before the channel's name, in the head
  std::string_view recipient;  // before the recipient's name, in the head
  std::string_view body;       // behind the head
  std::array<std::string_view, 3> ends;
  std::string_view reasoning_channel;
  std::string_view answer_head;  // written before an answer that is held to a form
};

enum class CallForm {
  kObject,  // {"name": …, "arguments": …}
  kJson,    // the name between marks, then the arguments as a JSON object
  kPairs,   // the name between marks, then the arguments one by one
};

// A turn holds text and groups of calls: `open`, then calls with `separator` between them, then
// `close`. White space around marks is skipped.
struct CallSyntax {
  std::string_view name;
  // The text that a template of the family writes for a turn that calls the function
  // kProbeFunction.
  std::string_view sign;
  std::string_view open = {};
  std::string_view list_open = {};  // may follow `open`
  std::string_view separator = {};  // empty: each call is a group of its own, unless `grouped`
  std::string_view close = {};
  std::string_view arguments = {};  // of objects: the name of the arguments
  bool bare = false;                // a turn that starts with an object is a call without `open`
  bool parallel = true;             // the template takes turns with several calls
  size_t id_length = 0;             // of the ids that the template takes; 0: any
  CallForm form = CallForm::kObject;
  bool grouped = false;  // calls follow one another in a group without a separator

  // For calls that are no objects:
  std::string_view head = {};         // before the name
  std::string_view prefix = {};       // of each name; models leave it out at times
  std::string_view number_open = {};  // between name and name_end: a number or an id, not read
  std::string_view number = {};       // a pattern of it
  std::string_view name_end = {};     // behind the name
  std::string_view call_end = {};     // behind the arguments
  PairSyntax pairs = {};
  std::string_view line = {};               // the white space that the family writes between marks
  const MessageSyntax* messages = nullptr;  // null: its turns are not made of messages
};

// All families.
std::span<const CallSyntax> call_syntaxes();

// Tells families apart: see CallSyntax::sign.
constexpr std::string_view kProbeFunction = "lockstep_probe";

// A control token that marks calls or reasoning.
struct ControlMark {
  std::string text;
  TokenId token = 0;
  bool ends_generation = false;  // constraints cannot ask for it
};

// The abilities of the model's chat template beyond text.
struct ChatFamily {
  const CallSyntax* calls = nullptr;  // null: there is no chat template
  // The template knows no tools: they and their calls are put into the messages.
  bool general_tools = false;
  bool system_messages = false;  // it takes a message of the role "system", and says it
  // The marks between which turns start with reasoning; null: they do not.
  const ReasoningMarks* reasoning = nullptr;
  // Null: turns are not made of messages.
  const MessageSyntax* messages = nullptr;
  // The member of a message in which the template wants earlier reasoning.
  std::string_view reasoning_member = "reasoning_content";
  bool describes_all = false;   // it takes no functions without a description
  bool text_arguments = false;  // it takes the arguments of calls as JSON texts alone
  // The control tokens that mark calls and reasoning: the reader of a turn wants their text, and
  // constraints ask for them.
  std::vector<ControlMark> marks;
  std::vector<TokenId> visible_tokens;  // the same, as Request has them
};

// By what the template makes of turns with a call and with reasoning.
ChatFamily find_chat_family(const Engine& engine);

// The id of a call, as the family's template takes it: the same for the same id.
std::string fitting_call_id(const CallSyntax& syntax, const std::string& id);

}  // namespace lockstep
